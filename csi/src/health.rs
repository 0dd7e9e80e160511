//! What the daemon said last of all views, kept so that an answer is there also while the daemon is not.

use std::sync::Arc;
use std::time::{Duration, Instant};

use gitmount_proto::fsd::v1 as proto;
use gitmount_proto::fsd::v1::State;
use tokio::sync::Mutex;

use crate::daemon::{Daemon, DaemonError};

/// A status that is younger is not asked for again.
const FRESH: Duration = Duration::from_secs(1);

/// What was said, and whether that is how it is now.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    /// The views.
    pub views: Arc<Vec<proto::View>>,
    /// Why the daemon did not answer just now.
    pub away: Option<DaemonError>,
    at: Option<Instant>,
}

/// The last status.
#[derive(Debug)]
pub struct Health {
    daemon: Daemon,
    seen: Mutex<Seen>,
}

impl Health {
    /// Nothing is known yet.
    pub fn new(daemon: Daemon) -> Self {
        Health { daemon, seen: Mutex::default() }
    }

    /// The views as they are now.
    ///
    /// # Errors
    /// When the daemon does not answer.
    pub async fn ask(&self) -> Result<Arc<Vec<proto::View>>, DaemonError> {
        let views = Arc::new(self.daemon.status().await?);
        *self.seen.lock().await = Seen { views: Arc::clone(&views), away: None, at: Some(Instant::now()) };
        Ok(views)
    }

    /// The views, as they are now when the daemon answers soon; else as they were.
    pub async fn look(&self) -> Seen {
        // Whoever comes meanwhile waits for the one question, which has a time limit.
        let mut seen = self.seen.lock().await;
        if seen.at.is_none_or(|at| at.elapsed() > FRESH) {
            match self.daemon.status().await {
                Ok(views) => (seen.views, seen.away) = (Arc::new(views), None),
                Err(error) => seen.away = Some(error),
            }
            seen.at = Some(Instant::now());
        }
        seen.clone()
    }
}

/// Why a view is not well; `None` when it is.
pub fn trouble(view: &proto::View) -> Option<String> {
    let why = if view.error.is_empty() { "the reason is not known" } else { &view.error };
    match view.state() {
        State::Stale => Some(format!("the host does not answer, commit {} is served: {why}", view.commit)),
        State::Failing | State::Gone => Some(format!("fetching fails, commit {} is served: {why}", view.commit)),
        State::Unmounted | State::Covered => Some(why.to_owned()),
        State::Unspecified | State::Ok | State::Detached | State::Waiting => None,
    }
}

/// The view that is shown at a target, and for whom.
pub fn at<'a>(views: &'a [proto::View], target: &str) -> Option<(&'a proto::View, Option<&'a proto::Volume>)> {
    views.iter().find_map(|view| {
        let place = view.mounts.iter().position(|mount| mount == target.as_bytes())?;
        Some((view, view.volumes.get(place)))
    })
}
