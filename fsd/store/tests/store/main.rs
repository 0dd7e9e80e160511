//! The store against git: repositories that git made, hosts that git serves, and git's own word on what came out.

mod credentials;
mod fetch;
mod fetch_failures;
mod fetch_history;
mod fetch_many;
mod full_disk;
mod heal;
mod keep;
mod kill;
mod local;
mod maintenance;
mod objects;
mod points;
mod silence;
mod space;
mod support;
mod talk;
