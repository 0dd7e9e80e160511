//! How a command ends: one sentence on stderr and an exit code that says whose fault it was.

use gitmount_store::{Fault, StoreError};
use serde::{Deserialize, Serialize};

/// Why a command failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CliError {
    /// The exit code.
    pub code: u8,
    /// One sentence, without credentials and without a final period.
    pub message: String,
}

/// The command's result.
pub type Result<T> = std::result::Result<T, CliError>;

impl CliError {
    /// The input was wrong.
    pub fn usage(message: impl Into<String>) -> Self {
        CliError { code: exit_code(Fault::Usage), message: message.into() }
    }

    /// What was asked for is not there.
    pub fn not_found(message: impl Into<String>) -> Self {
        CliError { code: exit_code(Fault::NotFound), message: message.into() }
    }

    /// Anything else.
    pub fn other(message: impl Into<String>) -> Self {
        CliError { code: exit_code(Fault::Internal), message: message.into() }
    }

    /// The line for stderr.
    pub fn line(&self) -> String {
        // One sentence is one line, whatever a host sent.
        let text: String = self.message.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        format!("gitmount: {}", text.trim_end())
    }
}

impl From<StoreError> for CliError {
    fn from(error: StoreError) -> Self {
        CliError { code: exit_code(error.fault()), message: error.to_string() }
    }
}

/// The exit code of a fault, as `--help` lists them.
pub fn exit_code(fault: Fault) -> u8 {
    match fault {
        Fault::Usage => 2,
        Fault::NotFound => 3,
        Fault::Refused => 4,
        Fault::Unreachable => 5,
        Fault::Cancelled => 130,
        Fault::Disk | Fault::Corrupt | Fault::Internal => 1,
    }
}

/// What the system said, without its number.
pub fn cause(error: &std::io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut chars = text.chars();
    // In the middle of a sentence.
    chars.next().map(|first| first.to_lowercase().chain(chars).collect()).unwrap_or_default()
}

/// One sentence from what clap wants to say in several lines.
pub fn from_clap(error: &clap::Error) -> CliError {
    let text = error.to_string();
    let mut paragraphs = text.split("\n\n");
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let sentence = words(paragraphs.next().unwrap_or_default());
    let sentence = sentence.strip_prefix("error: ").unwrap_or(&sentence);
    let tips = paragraphs.flat_map(str::lines).filter_map(|line| line.trim().strip_prefix("tip: "));
    let tips: String = tips.map(|tip| format!("; {}", words(tip))).collect();
    CliError::usage(format!("{}{tips}, see `gitmount --help`", sentence.trim_end_matches(['.', ':'])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_has_its_documented_code() {
        let codes = [
            (Fault::Usage, 2),
            (Fault::NotFound, 3),
            (Fault::Refused, 4),
            (Fault::Unreachable, 5),
            (Fault::Disk, 1),
            (Fault::Corrupt, 1),
            (Fault::Internal, 1),
            (Fault::Cancelled, 130),
        ];
        for (fault, code) in codes {
            let error = CliError::from(StoreError::new(fault, "x"));
            assert_eq!((error.code, error.message.as_str()), (code, "x"));
        }
    }

    #[test]
    fn causes_are_words() {
        assert_eq!(cause(&std::io::Error::from_raw_os_error(libc::EACCES)), "permission denied");
        assert_eq!(cause(&std::io::Error::other("Strange")), "strange");
    }

    #[test]
    fn an_error_is_one_line_without_control_characters() {
        let error = CliError::other("host said \u{1b}[31mno\nway\r");
        assert_eq!(error.line(), "gitmount: host said  [31mno way");
    }

    #[test]
    fn what_clap_says_in_several_lines_becomes_one_sentence() {
        use clap::Parser;
        let error = super::super::args::Cli::try_parse_from(["gitmount", "mount"]).unwrap_err();
        let line = from_clap(&error).line();
        assert_eq!(line, "gitmount: the following required arguments were not provided: <URL|PATH> <DIR>, see `gitmount --help`");
        let error = super::super::args::Cli::try_parse_from(["gitmount", "status", "--output", "xml"]).unwrap_err();
        let line = from_clap(&error).line();
        assert!(line.contains("'xml'") && line.contains("table, json"), "{line}");
        let error = super::super::args::Cli::try_parse_from(["gitmount", "mount", "--pul", "1m", "u", "d"]).unwrap_err();
        let line = from_clap(&error).line();
        assert!(line.contains("'--pul'") && line.contains("; a similar argument exists: '--pull'"), "{line}");
    }
}
