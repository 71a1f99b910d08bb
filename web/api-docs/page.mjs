// Shows openapi.json. Everything on the page comes from it; texts are set as text, never as markup.

const METHODS = ['get', 'post', 'put', 'patch', 'delete', 'head']

/** An element. Children may be nodes, strings, arrays of them, or empty. */
function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag)
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value)
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== ''))
  return element
}

/** A text in which `this` is code. */
function prose(text) {
  return text.split('`').map((part, i) => (i % 2 ? el('code', {}, part) : part))
}

/** The type of a schema in a few words, as a link where it has a name. */
function typeOf(schema) {
  if (schema === undefined || Object.keys(schema).length === 0) return 'anything'
  if (schema.$ref) {
    const name = schema.$ref.split('/').pop()
    return el('a', { href: `#schema-${name}` }, name)
  }
  if (schema.anyOf) return schema.anyOf.flatMap((s, i) => (i ? [' or ', typeOf(s)] : [typeOf(s)]))
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(' | ')
  const type = [schema.type ?? 'anything'].flat()
  if (type.includes('array') && schema.items) return ['array of ', typeOf(schema.items)]
  if (type.includes('object') && typeof schema.additionalProperties === 'object') {
    return ['object of ', typeOf(schema.additionalProperties)]
  }
  const limits = [
    schema.format,
    schema.minimum !== undefined && `≥ ${schema.minimum}`,
    schema.maximum !== undefined && `≤ ${schema.maximum}`,
    schema.default !== undefined && `default ${JSON.stringify(schema.default)}`,
  ].filter(Boolean)
  return type.join(' or ') + (limits.length ? ` (${limits.join(', ')})` : '')
}

/** The keys of an object schema, and of the objects in it. */
function shape(schema) {
  const inner = schema.properties ? schema : schema.items?.properties ? schema.items : null
  if (inner === null) return null
  const keys = Object.entries(inner.properties).map(([name, property]) =>
    el(
      'li',
      {},
      el('code', {}, name),
      (inner.required ?? []).includes(name) ? ': ' : '?: ',
      typeOf(property),
      property.description ? [' – ', prose(property.description)] : '',
      shape(property),
    ),
  )
  return el('ul', { class: 'shape' }, keys)
}

function content(media) {
  return Object.entries(media ?? {}).map(([type, { schema }]) =>
    el('div', {}, el('code', {}, type), ' ', typeOf(schema), shape(schema)),
  )
}

function table(title, rows) {
  return rows.length ? [el('h4', {}, title), el('table', {}, rows)] : []
}

function row(...cells) {
  return el('tr', {}, cells.map((cell) => el('td', {}, cell)))
}

/** One operation, folded. */
function operationView(doc, path, method, operation, aliases) {
  const parameters = (operation.parameters ?? []).map((p) =>
    row(
      [el('code', {}, p.name), p.required ? '' : '?'],
      [p.in, ', ', typeOf(p.schema)],
      prose(p.description ?? ''),
    ),
  )
  const answers = Object.entries(operation.responses).map(([status, given]) => {
    const answer = given.$ref ? doc.components.responses[given.$ref.split('/').pop()] : given
    return row(el('code', {}, status), [prose(answer.description), content(answer.content)])
  })
  const body = operation.requestBody
  return el(
    'details',
    { id: operation.operationId, 'data-words': `${method} ${path} ${operation.summary}`.toLowerCase() },
    el(
      'summary',
      {},
      el('span', { class: `method ${method}` }, method.toUpperCase()),
      el('span', { class: 'path' }, path),
      prose(operation.summary),
    ),
    el(
      'div',
      {},
      aliases.length ? el('p', { class: 'quiet' }, 'Also at ', el('code', {}, aliases.join(', '))) : '',
      table('Parameters', parameters),
      body ? [el('h4', {}, body.required ? 'Body' : 'Body, optional'), content(body.content)] : [],
      table('Answers', answers),
    ),
  )
}

/** Operations by resource, each once: [path, method, operation, other paths]. */
function operationsOf(doc) {
  const found = new Map(doc.tags.map((tag) => [tag.name, []]))
  const aliases = new Map()
  for (const [path, item] of Object.entries(doc.paths)) {
    for (const method of METHODS.filter((m) => item[m])) {
      const operation = item[method]
      const first = operation['x-alias-of']
      if (first) {
        const key = `${method} ${first}`
        aliases.set(key, [...(aliases.get(key) ?? []), path])
      } else {
        found.get(operation.tags[0]).push([path, method, operation])
      }
    }
  }
  for (const list of found.values()) {
    for (const entry of list) entry.push(aliases.get(`${entry[1]} ${entry[0]}`) ?? [])
  }
  return found
}

function render(doc) {
  const operations = operationsOf(doc)
  const resources = doc.tags.map((tag) => {
    const views = operations.get(tag.name).map((entry) => operationView(doc, ...entry))
    return el(
      'section',
      { id: `resource-${tag.name}` },
      el('h2', {}, tag.name.replaceAll('_', ' ')),
      el('p', { class: 'quiet' }, prose(tag.description)),
      views,
    )
  })
  const schemas = Object.entries(doc.components.schemas).map(([name, schema]) =>
    el(
      'details',
      { id: `schema-${name}`, 'data-words': name.toLowerCase() },
      el('summary', {}, el('span', { class: 'path' }, name), prose(schema.description ?? '')),
      el('div', {}, shape(schema) ?? el('p', {}, typeOf(schema))),
    ),
  )
  document.title = `${doc.info.title}: HTTP API`
  document.getElementById('content').replaceChildren(
    el('h1', {}, `${doc.info.title} ${doc.info.version}: HTTP API`),
    el('p', {}, prose(doc.info.description), ' As data: ', el('a', { href: 'openapi.json' }, 'openapi.json'), '.'),
    ...resources,
    el('section', { id: 'schemas' }, el('h2', {}, 'shapes'), schemas),
  )
  const links = [...doc.tags.map((tag) => [`resource-${tag.name}`, tag.name.replaceAll('_', ' ')]), ['schemas', 'shapes']]
  document.getElementById('resources').replaceChildren(
    ...links.map(([id, name]) => el('li', {}, el('a', { href: `#${id}` }, name))),
  )
}

/** Hide what does not hold every word. */
function filter(text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean)
  for (const section of document.querySelectorAll('main section')) {
    let any = false
    for (const entry of section.querySelectorAll('details')) {
      entry.hidden = !words.every((word) => entry.dataset.words.includes(word))
      any ||= !entry.hidden
    }
    section.hidden = !any
  }
}

/** Unfold what the address names. */
function reveal() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)))
  if (target?.tagName === 'DETAILS') target.open = true
  target?.scrollIntoView()
}

try {
  const answer = await fetch('openapi.json')
  if (!answer.ok) throw new Error(`openapi.json: status ${answer.status}`)
  render(await answer.json())
  document.getElementById('find').addEventListener('input', (event) => filter(event.target.value))
  window.addEventListener('hashchange', reveal)
  reveal()
} catch (error) {
  document.getElementById('content').replaceChildren(el('p', {}, `The description cannot be shown: ${error.message}`))
}
