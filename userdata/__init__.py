"""What belongs to a user: who there is, settings, and files. Everything lives below the user directory."""

from userdata.files import FileInfo, UserFiles
from userdata.settings import Settings
from userdata.users import UnknownUser, UserManager, UserNameError

__all__ = ["FileInfo", "Settings", "UnknownUser", "UserFiles", "UserManager", "UserNameError"]
