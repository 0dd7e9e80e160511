//! How far a fetch is, on stderr, when that is a terminal. In a pipe or a file nothing is drawn.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use gitmount_store::fetch::{Phase, Progress};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar on the terminal.
#[derive(Debug)]
pub struct Bar {
    bar: ProgressBar,
    phase: Mutex<Option<Phase>>,
}

impl Default for Bar {
    fn default() -> Self {
        Self::new()
    }
}

impl Bar {
    /// A bar that says nothing yet. The draw target hides it when stderr is no terminal.
    pub fn new() -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(10));
        bar.set_style(style("{spinner} {msg}"));
        Bar { bar, phase: Mutex::new(None) }
    }

    /// Shows a spinner beside `what`, for work that cannot say how far it is.
    pub fn spin(&self, what: impl Into<String>) {
        self.bar.set_message(what.into());
        self.tick();
    }

    /// Runs `work`, which may use the terminal, with the bar out of the way.
    pub fn suspend<T>(&self, work: impl FnOnce() -> T) -> T {
        if self.bar.is_hidden() {
            return work();
        }
        self.bar.disable_steady_tick();
        let result = self.bar.suspend(work);
        self.tick();
        result
    }

    /// Removes the bar.
    pub fn finish(&self) {
        self.bar.disable_steady_tick();
        self.bar.finish_and_clear();
    }

    fn tick(&self) {
        // The thread that ticks is not worth having when nobody sees it.
        if !self.bar.is_hidden() {
            self.bar.enable_steady_tick(Duration::from_millis(120));
        }
    }
}

impl Progress for Bar {
    fn update(&self, phase: Phase, done: u64, total: Option<u64>) {
        if self.bar.is_hidden() {
            return;
        }
        let mut before = self.phase.lock().unwrap_or_else(PoisonError::into_inner);
        if *before != Some(phase) {
            *before = Some(phase);
            self.bar.set_style(style(template(phase, total.is_some())));
            self.bar.reset();
            self.tick();
        }
        if let Some(total) = total {
            self.bar.set_length(total);
        }
        self.bar.set_position(done);
    }

    fn remote(&self, line: &str) {
        if !self.bar.is_hidden() {
            self.bar.println(format!("remote: {line}"));
        }
    }
}

fn template(phase: Phase, known: bool) -> &'static str {
    match (phase, known) {
        (Phase::Negotiating, _) => "{spinner} asking the host",
        (Phase::Receiving, true) => "receiving {wide_bar} {bytes}/{total_bytes} {bytes_per_sec}",
        (Phase::Receiving, false) => "{spinner} receiving {bytes} {bytes_per_sec}",
        (Phase::Indexing, true) => "indexing {wide_bar} {pos}/{len}",
        (Phase::Indexing, false) => "{spinner} indexing {pos}",
        (Phase::Resolving, true) => "resolving {wide_bar} {pos}/{len}",
        (Phase::Resolving, false) => "{spinner} resolving {pos}",
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("the templates are constants, and a test reads each").progress_chars("=> ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_template_is_valid() {
        for phase in [Phase::Negotiating, Phase::Receiving, Phase::Indexing, Phase::Resolving] {
            for known in [false, true] {
                style(template(phase, known));
            }
        }
    }

    #[test]
    fn suspend_gives_the_result_of_the_work() {
        assert_eq!(Bar::new().suspend(|| 3), 3);
    }
}
