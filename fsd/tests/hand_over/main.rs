//! Real mounts that outlive the process that serves them: killed, stopped, with a holder that is killed itself.

mod graceful;
mod killed;
mod restarts;
mod server;
