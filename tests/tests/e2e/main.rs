//! What users see of gitmount on a real Kubernetes, one module per behaviour. The cluster is brought up by the first test that needs it
//! and kept for the next run (`make cluster-down` ends it).

mod abuse;
mod claim;
mod cluster;
mod deleted;
mod demands;
mod examples;
mod forge;
mod inline;
mod load;
mod offline;
mod payloads;
mod private;
mod reboot;
mod refusals;
mod sanity;
mod scale;
mod security;
mod stopped;
mod sub_path;
mod survival;
mod webhooks;
