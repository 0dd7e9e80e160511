//! The `gitmount` command.
