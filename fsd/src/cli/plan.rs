//! From the options of `mount` to what the daemon is to do: every value is checked here, once, before anything is done.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use gitmount_store::StoreError;
use gitmount_store::credential::{Auth, HttpAuth, LoginSource};
use gitmount_store::path::RepoPath;
use gitmount_store::refspec::RefSpec;
use gitmount_store::store::StoreOptions;
use gitmount_store::url::{RepoUrl, Scheme, UrlPolicy};

use nix::unistd::Uid;

use super::args::{MountArgs, NotifyArg, OfflineArg, StoreArg};
use super::exit::{CliError, Result, cause};
use super::{git_config, mount_table, ssh};
use crate::daemon::policy::{self, Offline, Pull};
use crate::daemon::serving::{Config, RemoteSource, Source};
use crate::fuse::{Feature, Notify, UnknownFeature};

/// Where fusermount3 looks for what users may do.
const FUSE_CONF: &str = "/etc/fuse.conf";

/// What is mounted, before credentials are looked for.
#[derive(Debug, Clone)]
pub struct Plan {
    config: Config,
}

impl Plan {
    /// Checks the options and the mount point.
    pub fn new(args: &MountArgs) -> Result<Self> {
        let daemon_only = |error: StoreError| CliError::usage(format!("{error} (that with --socket only)"));
        let pull: Pull = args.pull.parse().map_err(daemon_only)?;
        if pull == Pull::OnDemand {
            return Err(CliError::usage(
                "pull interval \"on-demand\" is for views of a daemon (--socket): give \"never\", and run `gitmount pull` when there is news",
            ));
        }
        let depth = depth(&args.depth)?;
        let without = without_kernel(&args.without_kernel)?;
        let notify = match args.notify {
            NotifyArg::None => Notify::None,
            NotifyArg::Inotify if Uid::effective().is_root() => Notify::Inotify,
            NotifyArg::Inotify => return Err(CliError::usage("--notify inotify needs root: leave it out, and have watchers poll")),
        };
        let keep_snapshots = snapshots(&args.keep_snapshots)?;
        let path = RepoPath::parse(args.path.as_bytes())?;
        let offline = match args.offline {
            OfflineArg::Refuse => Offline::Refuse,
            OfflineArg::AllowStale => Offline::AllowStale,
        };
        let source = if is_local(&args.source) {
            let path = Path::new(&args.source);
            let path = path.canonicalize().map_err(|e| no_such_path(path, &e))?;
            Source::Local { path, revision: args.reference.clone() }
        } else {
            let url = url(text(&args.source, "URL")?, args)?;
            Source::Remote(Box::new(RemoteSource { url, spec: RefSpec::parse(&args.reference)?, depth, auth: Auth::default(), offline }))
        };
        let target = mount_table::absolute(&args.dir)?;
        if args.allow_other && !Uid::effective().is_root() && !others_allowed(&std::fs::read_to_string(FUSE_CONF).unwrap_or_default()) {
            return Err(CliError::usage(format!(
                "--allow-other needs the line `user_allow_other` in {FUSE_CONF}: add it, or leave the option out"
            )));
        }
        mount_table::check_target(&target)?;
        let mut store = store_options(&args.store)?;
        store.idle = timeout(&args.timeout)?;
        store.connect = store.connect.min(store.idle);
        let config = Config { source, path, pull, target, allow_other: args.allow_other, keep_snapshots, without, notify, store };
        Ok(Plan { config })
    }

    /// Where it is mounted.
    pub fn target(&self) -> &Path {
        &self.config.target
    }

    /// The daemon's configuration, with what this user may present to the host; and what of the user's own configuration cannot be honoured.
    pub fn with_credentials(mut self, login: Arc<dyn LoginSource>) -> Result<(Config, Vec<String>)> {
        let mut warnings = Vec::new();
        if let Source::Remote(remote) = &mut self.config.source {
            let RemoteSource { url, auth, .. } = &mut **remote;
            match url.scheme() {
                Scheme::Https | Scheme::Http => {
                    auth.http = HttpAuth::Ask(login);
                    let env = std::env::var_os("GIT_SSL_CAINFO").filter(|v| !v.is_empty()).map(PathBuf::from);
                    if let Some(file) = git_config::ca_file(&git_config::load()?, &url.to_string(), env) {
                        auth.ca = Some(std::fs::read_to_string(&file).map_err(|e| {
                            CliError::usage(format!(
                                "the certificates of GIT_SSL_CAINFO or http.sslCAInfo, {}, cannot be read ({e})",
                                file.display()
                            ))
                        })?);
                        // As in git, the file stands in place of the system's certificates.
                        auth.only_ca = true;
                    }
                }
                Scheme::Ssh => (auth.ssh, warnings) = ssh::auth(url, &ssh::person()),
                Scheme::Git | Scheme::File => {}
            }
        }
        Ok((self.config, warnings))
    }
}

/// Checks a URL; of one that an option allows it says so.
fn url(text: &str, args: &MountArgs) -> Result<RepoUrl> {
    let parse = |allow_http, allow_file| RepoUrl::parse(text, &UrlPolicy { allow_http, allow_file, hosts: vec![] });
    parse(args.allow_http, args.allow_file).map_err(|error| match parse(true, true) {
        Ok(url) if url.scheme() == Scheme::Http => CliError::usage(format!("{error} with --allow-http")),
        Ok(url) => CliError::usage(format!(
            "url \"{url}\" uses file, which is switched off: give the path {} itself, or allow it with --allow-file",
            url.path()
        )),
        Err(_) => error.into(),
    })
}

/// Whether `source` means a path: it exists, or it can be nothing else.
pub fn is_local(source: &OsStr) -> bool {
    let bytes = source.as_bytes();
    // A mount whose process died exists, too.
    let dead = |e: std::io::Error| e.raw_os_error() == Some(libc::ENOTCONN);
    bytes.starts_with(b".") || bytes.starts_with(b"/") || Path::new(source).try_exists().unwrap_or_else(dead)
}

/// An argument that has to be text.
pub fn text<'a>(argument: &'a OsStr, what: &str) -> Result<&'a str> {
    argument.to_str().ok_or_else(|| CliError::usage(format!("{what} {argument:?} is not UTF-8: give it in UTF-8")))
}

/// The store to use, with what the command line allows.
pub fn store_options(arg: &StoreArg) -> Result<StoreOptions> {
    let env = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let root = store_root(arg.store.as_deref(), env("XDG_CACHE_HOME"), &ssh::person().home);
    let root = std::path::absolute(&root)
        .map_err(|e| CliError::usage(format!("store {:?} is no directory name ({e}): give a directory such as ~/.cache/gitmount", root)))?;
    let mut options = StoreOptions::new(root);
    options.proxy_from_env = true;
    Ok(options)
}

fn store_root(given: Option<&Path>, cache: Option<PathBuf>, home: &Path) -> PathBuf {
    match (given, cache.filter(|c| c.is_absolute())) {
        (Some(root), _) => root.to_owned(),
        (None, Some(cache)) => cache.join("gitmount"),
        (None, None) => home.join(".cache/gitmount"),
    }
}

/// Whether `fuse.conf` lets users other than root mount for everybody.
fn others_allowed(conf: &str) -> bool {
    conf.lines().any(|line| line.trim() == "user_allow_other")
}

/// The features that an option names.
pub fn without_kernel(names: &[String]) -> Result<Vec<Feature>> {
    let features: std::result::Result<_, _> = names.iter().map(|name| name.parse()).collect();
    features.map_err(|e: UnknownFeature| CliError::usage(e.to_string()))
}

fn depth(text: &str) -> Result<u32> {
    text.parse().map_err(|_| CliError::usage(format!("depth {text:?} is no number of commits: give 1 or more, or 0 for the whole history")))
}

fn snapshots(text: &str) -> Result<usize> {
    const MOST: usize = 1000;
    text.parse()
        .ok()
        .filter(|count| *count <= MOST)
        .ok_or_else(|| CliError::usage(format!("keep-snapshots {text:?} is no number of earlier commits: give 0 to {MOST}, such as 3")))
}

fn timeout(text: &str) -> Result<Duration> {
    policy::duration(text).ok_or_else(|| {
        CliError::usage(format!("timeout {text:?} is no time that a host may be silent for: give a duration such as \"30s\" or \"2m\""))
    })
}

fn no_such_path(path: &Path, error: &std::io::Error) -> CliError {
    let what = match error.kind() {
        std::io::ErrorKind::NotFound => "does not exist".to_owned(),
        _ => format!("cannot be used ({})", cause(error)),
    };
    CliError::not_found(format!("path {} {what}: give a directory in a git repository, or a URL", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_exists_or_begins_with_a_dot_or_slash_is_a_path() {
        for local in [".", "..", "./x", "../x", "/x", "src", ".hidden"] {
            assert!(is_local(OsStr::new(local)), "{local}");
        }
        for url in ["https://example.com/a.git", "git@example.com:a.git", "host:path", "no-such-directory", "ext::sh", ""] {
            assert!(!is_local(OsStr::new(url)), "{url}");
        }
    }

    #[test]
    fn the_store_is_given_or_in_the_cache() {
        let home = Path::new("/home/me");
        assert_eq!(store_root(Some(Path::new("/s")), Some("/cache".into()), home), Path::new("/s"));
        assert_eq!(store_root(None, Some("/cache".into()), home), Path::new("/cache/gitmount"));
        assert_eq!(store_root(None, Some("relative".into()), home), Path::new("/home/me/.cache/gitmount"));
        assert_eq!(store_root(None, None, home), Path::new("/home/me/.cache/gitmount"));
    }

    #[test]
    fn fuse_conf_allows_others_by_a_line_of_its_own() {
        assert!(others_allowed("# comment\n user_allow_other \n"));
        assert!(!others_allowed("#user_allow_other\nmount_max = 1000\n") && !others_allowed(""));
    }

    #[test]
    fn a_timeout_is_a_duration_above_zero() {
        assert_eq!(timeout("2m").unwrap(), Duration::from_secs(120));
        for bad in ["", "0s", "60", "never"] {
            assert!(timeout(bad).unwrap_err().message.contains("\"30s\""), "{bad}");
        }
    }

    #[test]
    fn few_snapshots_can_be_kept() {
        assert_eq!((snapshots("0").unwrap(), snapshots("1000").unwrap()), (0, 1000));
        for bad in ["", "-1", "1001", "all"] {
            assert!(snapshots(bad).unwrap_err().message.contains("0 to 1000"), "{bad}");
        }
    }

    #[test]
    fn depth_is_a_number() {
        assert_eq!((depth("0").unwrap(), depth("17").unwrap()), (0, 17));
        for bad in ["", "-1", "1.5", "all", "99999999999"] {
            assert!(depth(bad).unwrap_err().message.contains("0 for the whole history"), "{bad}");
        }
    }
}
