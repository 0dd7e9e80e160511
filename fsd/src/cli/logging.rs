//! The log of a process that stays: to stderr, as lines for people or as an object a line. `$GITMOUNT_LOG` sets the level.

use std::io::IsTerminal;

use super::args::LogFormat;

/// Starts logging.
pub fn start(format: LogFormat) {
    let filter = tracing_subscriber::EnvFilter::try_from_env("GITMOUNT_LOG").unwrap_or_else(|_| "info".into());
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
    // Fails only when a subscriber is set already, which then logs.
    let _ = match format {
        LogFormat::Text => log.with_ansi(std::io::stderr().is_terminal()).try_init(),
        LogFormat::Json => log.json().flatten_event(true).with_current_span(false).with_span_list(false).try_init(),
    };
}
