//! From what went wrong below to a [`StoreError`]: the typed failure of a transport first, then what gix's error chain and the host's own
//! words say.

use std::error::Error;
use std::io;
use std::sync::{Mutex, MutexGuard};

use crate::error::{Fault, StoreError};
use crate::url::RepoUrl;

#[cfg(test)]
mod tests;

/// Locks, also after a panic elsewhere: what is behind these locks is valid at every moment.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// What a fetch that failed failed of: the transport's first failure if there is one, else what `error` (gix's) amounts to.
pub(crate) fn classify(error: &(dyn Error + 'static), failure: &Mutex<Option<StoreError>>, url: &RepoUrl) -> StoreError {
    if let Some(first) = lock(failure).take() {
        return first;
    }
    let chain = chain(error);
    let text = words(&chain);
    let (fault, what) = if let Some(fault) = disk(&chain) {
        (fault, format!("storing what was fetched from {url} failed: {text}"))
    } else if let Some((fault, said)) = remote_words(&chain) {
        (fault, format!("host of {url} says: {said}{}", remedy(&said)))
    } else if gix::error::classify(error).is_cancelled() {
        (Fault::Cancelled, format!("the fetch of {url} was cancelled"))
    } else if let Some(fault) = connection(&chain) {
        (fault, format!("the connection to {url} broke: {text}"))
    } else if gix::error::classify(error).is_corrupted() {
        (Fault::Corrupt, format!("what was fetched from {url} is broken: {text}"))
    } else {
        (Fault::Internal, format!("the fetch of {url} failed: {text}"))
    };
    StoreError::new(fault, what).caused_by(text)
}

/// What a host says in its own words (an `ERR` line, or the standard error of `git-upload-pack`), if it is an answer about the repository or
/// the login.
pub(super) fn verdict(words: &str) -> Option<Fault> {
    let words = words.to_ascii_lowercase();
    let says = |any: &[&str]| any.iter().any(|w| words.contains(w));
    if says(&["command not found", "git-upload-pack: not found"]) {
        Some(Fault::Refused)
    } else if says(&[
        "not found",
        "does not exist",
        "doesn't exist",
        "no such",
        "could not be found",
        "not a git repository",
        "does not appear to be a git repository",
        "not exported",
        "not our ref",
        "couldn't find remote ref",
    ]) {
        // git daemon has one answer for a missing and for a hidden repository ("access denied or repository not exported"), and asks for no
        // login that could be refused: to the user the repository is not there.
        Some(Fault::NotFound)
    } else if says(&[
        "permission denied",
        "access denied",
        "denied",
        "not authorized",
        "unauthorized",
        "authentication failed",
        "dubious ownership",
    ]) {
        Some(Fault::Refused)
    } else {
        None
    }
}

/// What to look at, where a host says little: git daemon has one answer for a path that is wrong and one that it does not export.
fn remedy(said: &str) -> &'static str {
    let exports = said.to_ascii_lowercase().contains("not exported");
    if exports { ": check the path, and that the repository has a file git-daemon-export-ok at the host" } else { "" }
}

/// The innermost words that are a verdict: what is around them is gix's.
fn remote_words(chain: &[&(dyn Error + 'static)]) -> Option<(Fault, String)> {
    chain.iter().rev().map(|e| printable(&e.to_string(), 300)).find_map(|said| verdict(&said).map(|fault| (fault, said)))
}

/// An error with everything below it, outermost first; what an [`io::Error`] wraps is part of it.
pub(super) fn chain<'a>(error: &'a (dyn Error + 'static)) -> Vec<&'a (dyn Error + 'static)> {
    let mut all: Vec<&'a (dyn Error + 'static)> = vec![];
    let mut next = Some(error);
    // A bound instead of trust in other crates that no chain is a ring.
    while let Some(error) = next.filter(|_| all.len() < 32) {
        all.push(error);
        next = match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            Some(inner) => Some(inner),
            None => error.source(),
        };
    }
    all
}

/// The innermost cause in words, without the system's number for it.
pub(super) fn root_cause(error: &(dyn Error + 'static)) -> String {
    let cause = chain(error).last().map(|e| printable(&e.to_string(), 300)).unwrap_or_default();
    cause.split(" (os error ").next().unwrap_or_default().to_owned()
}

/// The whole chain in words, each said once.
fn words(chain: &[&(dyn Error + 'static)]) -> String {
    let mut text = String::new();
    for error in chain {
        let said = printable(&error.to_string(), 300);
        if !said.is_empty() && !text.contains(&said) {
            if !text.is_empty() {
                text.push_str(": ");
            }
            text.push_str(&said);
        }
    }
    text
}

fn disk(chain: &[&(dyn Error + 'static)]) -> Option<Fault> {
    use io::ErrorKind as Kind;
    let kinds = chain.iter().filter_map(|e| e.downcast_ref::<io::Error>()).map(io::Error::kind);
    let full = |k| matches!(k, Kind::StorageFull | Kind::QuotaExceeded | Kind::ReadOnlyFilesystem | Kind::FileTooLarge);
    kinds.into_iter().any(full).then_some(Fault::Disk)
}

fn connection(chain: &[&(dyn Error + 'static)]) -> Option<Fault> {
    use io::ErrorKind as Kind;
    let kinds = chain.iter().filter_map(|e| e.downcast_ref::<io::Error>()).map(io::Error::kind);
    let broke = |k| {
        matches!(
            k,
            Kind::UnexpectedEof | Kind::ConnectionReset | Kind::ConnectionAborted | Kind::BrokenPipe | Kind::TimedOut | Kind::NotConnected
        )
    };
    kinds.into_iter().any(broke).then_some(Fault::Unreachable)
}

/// Foreign text made fit for a message: one line, no control characters, at most `limit` characters.
pub(super) fn printable(text: &str, limit: usize) -> String {
    let mut clean = String::new();
    for word in text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|w| !w.is_empty()) {
        if !clean.is_empty() {
            clean.push(' ');
        }
        // Marks that turn the direction of text around can make a message read as another one.
        clean.extend(word.chars().filter(|c| !matches!(c, '\u{200e}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')));
        if clean.len() > 4 * limit {
            break;
        }
    }
    match clean.char_indices().nth(limit) {
        Some((at, _)) => format!("{}…", &clean[..at]),
        None => clean,
    }
}
