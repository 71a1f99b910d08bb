/**
 * Opens a workflow that runs with the built-in model for somebody who has none in this browser yet.
 *
 * Where there is nothing to restore, the front end opens a blank canvas under its template browser (a fresh user) or
 * a default graph (a known user in another browser); both want models that are not here. This extension opens
 * `text_to_image.workflow.json` instead and notes that the introduction is over, so that the template browser stays
 * closed. Whoever has a workflow in this browser, or came by a link to one, keeps it; they find the starter in the menu
 * (Help).
 *
 * Only the public extension interface is used. If a part of it is missing, the front end goes its own way.
 */
import { app } from "../../scripts/app.js";

const WORKFLOW_FILE = "text_to_image.workflow.json";
const WORKFLOW_NAME = "text_to_image";
const TUTORIAL_SETTING = "Comfy.TutorialCompleted";
const START_TIMEOUT_MS = 30_000;
const POLL_MS = 50;

/** Keys under which the front end keeps workflows and open tabs in the browser, newest generation first. */
const SAVED_WORK = [
  /^Comfy\.Workflow\.Draft\.v2:/,
  /^Comfy\.Workflow\.(Last)?(Active|Open)Paths?:/,
  /^Comfy\.Workflow\.Drafts$/,
  /^Comfy\.PreviousWorkflow$/,
  /^workflow$/,
];
/** Query parameters of links that name the workflow to open. */
const LINK_PARAMETERS = ["template", "share"];

/** The starter workflow while it waits for its turn; null when there is nothing for us to do. */
let starter = null;

function holdsWork(storage) {
  return Object.keys(storage).some((key) => SAVED_WORK.some((pattern) => pattern.test(key)));
}

function nothingToRestore() {
  const query = new URLSearchParams(location.search);
  const linked = LINK_PARAMETERS.some((name) => query.has(name));
  return !linked && !holdsWork(localStorage) && !holdsWork(sessionStorage);
}

async function fetchWorkflow() {
  const answer = await fetch(new URL(WORKFLOW_FILE, import.meta.url));
  if (!answer.ok) throw new Error(`${answer.url}: ${answer.status} ${answer.statusText}`);
  return answer.json();
}

/** Resolves when the front end has finished its start (its busy mark is gone), or after a limit. */
async function startFinished() {
  const limit = Date.now() + START_TIMEOUT_MS;
  while (app.extensionManager.spinner && Date.now() < limit) {
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
}

/** Loads the workflow into a tab of its own and closes the one the front end had opened. */
async function openStarter(workflow) {
  await startFinished();
  const tabs = app.extensionManager.workflow;
  const first = tabs?.activeWorkflow;
  await app.loadGraphData(workflow, true, true, WORKFLOW_NAME);
  if (first?.isTemporary && first !== tabs.activeWorkflow) await tabs.closeWorkflow?.(first);
}

function report(error) {
  console.warn("Darkroom: the starter workflow could not be opened.", error);
}

app.registerExtension({
  name: "Darkroom.Starter",

  commands: [
    {
      id: "Darkroom.OpenStarter",
      label: "Open the starter workflow",
      icon: "pi pi-play",
      function: async () => app.loadGraphData(await fetchWorkflow(), true, true, WORKFLOW_NAME),
    },
  ],
  menuCommands: [{ path: ["Help"], commands: ["Darkroom.OpenStarter"] }],

  /** The front end is built but has opened no workflow yet. */
  async setup() {
    try {
      if (app.extensionManager?.setting && nothingToRestore()) starter = await fetchWorkflow();
    } catch (error) {
      report(error);
    }
  },

  /** A graph has been loaded: the first one is what the front end opens by itself. */
  async afterConfigureGraph() {
    if (!starter) return;
    const workflow = starter;
    starter = null;
    try {
      // Before the front end looks at it, which is right after this first graph.
      const setting = app.extensionManager.setting;
      if (!setting.get(TUTORIAL_SETTING)) await setting.set(TUTORIAL_SETTING, true);
    } catch (error) {
      report(error);
    }
    openStarter(workflow).catch(report); // not awaited: the load in progress would wait for ours
  },
});
