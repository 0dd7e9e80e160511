//! The user's git configuration, as far as talking to a host over HTTP needs it. Only the command line reads it, never the store.
//!
//! Read are the system's file, the user's files and `GIT_CONFIG_*` of the environment, with what they include; no repository's own.

use std::path::PathBuf;

use bstr::{BStr, ByteSlice};
use gitmount_store::error::Result;
use gitmount_store::{Fault, StoreError};
use gix::config::File;
use gix::config::file::{Metadata, includes, init};
use gix::config::source::Kind;

/// Reads it.
///
/// # Errors
/// A file that cannot be read or understood.
pub fn load() -> Result<File> {
    // git's own installation prefix would have to be asked of `git`; on Linux its file is the system's.
    let files = [Kind::System, Kind::Global].iter().flat_map(|kind| kind.sources()).filter_map(|source| {
        let path = source.storage_location(&mut |name| std::env::var_os(name)).filter(|p| p.is_file())?;
        Some(Metadata { path: Some(path), source: *source, level: 0, trust: gix::sec::Trust::Full })
    });
    let home = std::env::home_dir();
    let options = init::Options { includes: includes::Options::follow_without_conditional(home.as_deref()), ..Default::default() };
    let unreadable = |e: gix::Error| StoreError::new(Fault::Usage, format!("the git configuration cannot be read: {e}"));
    let mut config = File::from_paths_metadata(files, options).map_err(unreadable)?.unwrap_or_default();
    config.append(File::from_environment_overrides().map_err(unreadable)?).map_err(unreadable)?;
    Ok(config)
}

/// The file of certificates to trust for `url`: `$GIT_SSL_CAINFO`, else `http.<url>.sslCAInfo`, else `http.sslCAInfo`.
pub fn ca_file(config: &File, url: &str, env: Option<PathBuf>) -> Option<PathBuf> {
    if env.is_some() {
        return env;
    }
    let url = gix::url::parse(url).ok()?;
    let mut best: Option<(usize, String)> = None;
    for section in config.sections_by_name("http").into_iter().flatten() {
        let Some(value) = section.value("sslCAInfo") else { continue };
        let Some(weight) = section.header().subsection_name().map_or(Some(0), |pattern| fits(pattern, &url)) else { continue };
        // Of equally good ones the last wins, as everywhere in git configuration.
        if best.as_ref().is_none_or(|(w, _)| *w <= weight) {
            best = Some((weight, value.to_str_lossy().into_owned()));
        }
    }
    let (_, text) = best.filter(|(_, text)| !text.is_empty())?;
    match (text.strip_prefix("~/"), std::env::home_dir()) {
        (Some(rest), Some(home)) => Some(home.join(rest)),
        _ => Some(PathBuf::from(text)),
    }
}

/// How well the `<url>` of a section fits, by the length of its path; `None` when it does not.
fn fits(pattern: &BStr, url: &gix::Url) -> Option<usize> {
    let pattern = gix::url::parse(pattern).ok()?;
    let same = pattern.scheme == url.scheme && pattern.host() == url.host() && pattern.port_or_default() == url.port_or_default();
    let path = pattern.path.trim_end_with(|c| c == '/');
    let below = url.path.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"));
    (same && below).then_some(1 + path.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> File {
        File::from_bytes_no_includes(text.as_bytes(), Metadata::api(), init::Options::default()).unwrap()
    }

    #[test]
    fn the_best_fitting_section_names_the_certificates() {
        let config = config(
            "[http]\n sslCAInfo = /all\n[http \"https://a.example\"]\n sslCAInfo = /host\n\
             [http \"https://a.example/team/\"]\n sslCAInfo = /team\n[http \"https://a.example:8443\"]\n sslCAInfo = /port\n",
        );
        let file = |url| ca_file(&config, url, None).unwrap();
        assert_eq!(file("https://b.example/x"), PathBuf::from("/all"));
        assert_eq!(file("https://a.example/x"), PathBuf::from("/host"));
        assert_eq!(file("https://a.example/team/x"), PathBuf::from("/team"));
        assert_eq!(file("https://a.example/teams/x"), PathBuf::from("/host"));
        assert_eq!(file("https://a.example:443/x"), PathBuf::from("/host"));
        assert_eq!(file("https://a.example:8443/x"), PathBuf::from("/port"));
        assert_eq!(ca_file(&config, "https://a.example/x", Some("/env".into())), Some("/env".into()));
    }

    #[test]
    fn without_configuration_there_is_no_file() {
        assert_eq!(ca_file(&config(""), "https://a.example/x", None), None);
        assert_eq!(ca_file(&config("[http]\n sslCAInfo =\n"), "https://a.example/x", None), None);
    }
}
