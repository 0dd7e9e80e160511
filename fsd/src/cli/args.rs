//! The command line: commands, options and their help. Values with rules of their own are taken as text and checked by who uses them,
//! so that every refusal is a sentence of ours.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

/// What `--help` ends with.
const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  something else failed (disk, broken data, a bug)
  2  wrong usage: an option, a URL, the mount point
  3  not found: repository, ref, path or mount
  4  refused: credential, host key or certificate
  5  the host does not answer
  130  interrupted";

/// The whole command line.
#[derive(Debug, Parser)]
#[command(name = "gitmount", version, about = "Mount git repositories as read-only file systems", disable_help_subcommand = true)]
#[command(after_help = EXIT_CODES, max_term_width = 100, subcommand_required = true, arg_required_else_help = false)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Mount a repository's tree on an empty directory
    #[command(after_help = "\
Examples:
  gitmount mount https://github.com/git/git /mnt/git
  gitmount mount --ref v2.43.0 --path Documentation https://github.com/git/git /mnt/docs
  gitmount mount git@example.com:team/app.git ~/app --pull 30s
  gitmount mount . /mnt/yesterday --ref 'main@{yesterday}'

A local path is served from that repository itself, follows its refs at once, and --ref takes any revision that git takes.
The command returns when the tree is served; the mount lasts until `gitmount unmount DIR`.")]
    Mount(MountArgs),
    /// Unmount a tree
    #[command(after_help = "\
Examples:
  gitmount unmount /mnt/git
  gitmount unmount --lazy /mnt/git     # although files are open there")]
    Unmount(UnmountArgs),
    /// Fetch now and show what is new
    #[command(after_help = "\
Example:
  gitmount pull /mnt/git

Prints the commits before and after as OLD..NEW, or that nothing changed.")]
    Pull(PullArgs),
    /// Show what is mounted, at which commit, and how its fetches go
    #[command(after_help = "\
Examples:
  gitmount status
  gitmount status --output json /mnt/git

States: ok; stale (the host did not answer at the start); failing (the last fetch failed); gone (the ref or repository
disappeared); waiting (the daemon was restarted and waits for the mount's credential: mount it again); unmounted (somebody
unmounted it without gitmount); covered (somebody mounted something over it); detached (unmounted lazily, still in use);
dead (the process of the mount died: unmount it).")]
    Status(StatusArgs),
    /// Show the last events of a mount: switches, failed fetches, what is not served
    #[command(after_help = "\
Examples:
  gitmount log /mnt/git
  gitmount log --output json /mnt/git
  gitmount log --socket /run/gitmount.sock /mnt/git")]
    Log(LogArgs),
    /// Serve many mounts from one process, for services and clusters
    #[command(after_help = "\
Examples:
  gitmount daemon --state /var/lib/gitmount --socket /run/gitmount.sock
  gitmount mount --socket /run/gitmount.sock https://github.com/git/git /mnt/git
  gitmount status --socket /run/gitmount.sock

It runs in the foreground, logs to stderr, and answers root alone. SIGTERM ends it and its mounts; with a holder (--hold) the
mounts stay for the next daemon.")]
    Daemon(DaemonArgs),
    /// Check every stored object of a repository against its id
    #[command(after_help = "\
Examples:
  gitmount verify https://github.com/git/git
  gitmount verify /mnt/git
  gitmount verify --socket /run/gitmount.sock /mnt/git")]
    Verify(VerifyArgs),
    /// Remove what no mount needs from the store
    #[command(after_help = "\
Examples:
  gitmount gc
  gitmount gc https://github.com/git/git
  gitmount gc --drop https://github.com/git/git     # as if it had never been fetched")]
    Gc(GcArgs),
    /// Keep the mounts of a daemon alive while it is restarted
    #[command(after_help = "\
Example:
  gitmount hold --socket /run/gitmount/hold.sock

Runs until it gets SIGTERM, beside the daemon and longer than it. It keeps a copy of each mount's descriptor and does nothing else:
a daemon that is killed or replaced finds its mounts there, and their readers wait instead of failing.")]
    Hold(HoldArgs),
    /// Print a completion script for a shell
    #[command(after_help = "\
Example:
  gitmount completions bash > ~/.local/share/bash-completion/completions/gitmount")]
    Completions(CompletionsArgs),
}

/// Where the store is.
#[derive(Debug, Args)]
pub struct StoreArg {
    /// Directory of fetched repositories [default: $XDG_CACHE_HOME/gitmount or ~/.cache/gitmount]
    #[arg(long, value_name = "DIR", env = "GITMOUNT_STORE", hide_env_values = true)]
    pub store: Option<PathBuf>,
}

/// Which daemon is asked.
#[derive(Debug, Args)]
pub struct SocketArg {
    /// Ask the daemon that listens on this socket
    #[arg(long, value_name = "PATH", env = "GITMOUNT_SOCKET", hide_env_values = true)]
    pub socket: Option<PathBuf>,
}

/// `gitmount mount`.
#[derive(Debug, Args)]
pub struct MountArgs {
    /// URL (https://, ssh://, user@host:path, git://), or the path of a local repository: what exists, or begins with . or /
    #[arg(value_name = "URL|PATH")]
    pub source: OsString,
    /// An empty directory
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// Branch, tag, HEAD, full ref name or full commit id; any revision for a local repository
    #[arg(long = "ref", value_name = "REF", default_value = "HEAD")]
    pub reference: String,
    /// Sub-directory of the repository that becomes the root of the mount [default: the whole tree]
    #[arg(long, value_name = "PATH", default_value = "", hide_default_value = true)]
    pub path: OsString,
    /// How often to look for news: a duration such as 30s, 5m, 1h30m, or never, or with --socket on-demand
    #[arg(long, value_name = "INTERVAL", default_value = "5m")]
    pub pull: String,
    /// Commits of history to fetch; 0 for all
    #[arg(long, value_name = "N", default_value = "1", allow_negative_numbers = true)]
    pub depth: String,
    /// Give up on a host that is silent for this long
    #[arg(long, value_name = "DURATION", default_value = "60s")]
    pub timeout: String,
    /// What to do when the host does not answer: refuse, or serve the last known commit
    #[arg(long, value_enum, value_name = "MODE", default_value = "refuse")]
    pub offline: OfflineArg,
    /// Where fetched repositories are kept.
    #[command(flatten)]
    pub store: StoreArg,
    /// Allow http:// URLs, which nothing protects on their way
    #[arg(long)]
    pub allow_http: bool,
    /// Allow file:// URLs
    #[arg(long)]
    pub allow_file: bool,
    /// Which daemon serves it, if any.
    #[command(flatten)]
    pub socket: SocketArg,
    /// Let other users read the mount (needs user_allow_other in /etc/fuse.conf)
    #[arg(long)]
    pub allow_other: bool,
    /// Earlier commits that stay readable below DIR/.gitmount/commit/ID
    #[arg(long, value_name = "N", default_value = "3", allow_negative_numbers = true)]
    pub keep_snapshots: String,
    /// Whether watchers are told of switches: none, or inotify (root only)
    #[arg(long, value_enum, value_name = "HOW", default_value = "none")]
    pub notify: NotifyArg,
    /// Do without features of the kernel, as on an older one (docs/kernels.md)
    #[arg(long, value_name = "FEATURE,…", value_delimiter = ',', hide = true)]
    pub without_kernel: Vec<String>,
    /// Stay in the foreground and log to stderr ($GITMOUNT_LOG sets the level)
    #[arg(short, long)]
    pub foreground: bool,
}

/// `--offline`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OfflineArg {
    /// Do not mount
    #[value(name = "refuse")]
    Refuse,
    /// Serve the last known commit
    #[value(name = "allowStale")]
    AllowStale,
}

/// `--notify`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum NotifyArg {
    /// No events, as on network file systems
    None,
    /// CLOSE_WRITE for each changed file
    Inotify,
}

/// `gitmount unmount`.
#[derive(Debug, Args)]
pub struct UnmountArgs {
    /// The mount point
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// Detach now although files are open; the mount ends with its last user
    #[arg(short, long)]
    pub lazy: bool,
    /// Which daemon is asked, if any.
    #[command(flatten)]
    pub socket: SocketArg,
}

/// `gitmount pull`.
#[derive(Debug, Args)]
pub struct PullArgs {
    /// The mount point
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// Which daemon is asked, if any.
    #[command(flatten)]
    pub socket: SocketArg,
}

/// `gitmount status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Only this mount
    #[arg(value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// How to print
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value = "table")]
    pub output: OutputArg,
    /// Which daemon is asked, if any.
    #[command(flatten)]
    pub socket: SocketArg,
}

/// `--output`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OutputArg {
    /// Columns for people
    Table,
    /// A list of objects for scripts
    Json,
}

/// `gitmount log`.
#[derive(Debug, Args)]
pub struct LogArgs {
    /// The mount point
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// How to print
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value = "table")]
    pub output: OutputArg,
    /// Which daemon is asked, if any.
    #[command(flatten)]
    pub socket: SocketArg,
}

/// `gitmount daemon`.
#[derive(Debug, Args)]
pub struct DaemonArgs {
    /// Directory of what the daemon must know again after a restart
    #[arg(long, value_name = "DIR")]
    pub state: PathBuf,
    /// Where to listen; root alone is answered
    #[arg(long, value_name = "PATH")]
    pub socket: PathBuf,
    /// Socket of `gitmount hold`, which keeps the mounts while no daemon runs
    #[arg(long, value_name = "PATH")]
    pub hold: Option<PathBuf>,
    /// Directory of fetched repositories [default: store below --state]
    #[arg(long, value_name = "DIR")]
    pub store: Option<PathBuf>,
    /// Keep the store under this size, such as 20G, by removing repositories that no mount uses [default: no limit]
    #[arg(long, value_name = "SIZE")]
    pub store_limit: Option<String>,
    /// Serve /metrics, /healthz and /readyz over HTTP, such as 127.0.0.1:9400
    #[arg(long, value_name = "ADDR")]
    pub metrics: Option<String>,
    /// Commits that stay readable by name beside the one that is served
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub keep_snapshots: usize,
    /// Demands within this time cost one fetch, at its end; also the shortest wait after a failed fetch
    #[arg(long, value_name = "DURATION", default_value = "10s")]
    pub demand_min_interval: String,
    /// Give up on a host that is silent for this long
    #[arg(long, value_name = "DURATION", default_value = "60s")]
    pub timeout: String,
    /// Allow http:// URLs, which nothing protects on their way
    #[arg(long)]
    pub allow_http: bool,
    /// Allow file:// URLs
    #[arg(long)]
    pub allow_file: bool,
    /// Allow only this host; may be repeated [default: all]
    #[arg(long = "allow-host", value_name = "HOST")]
    pub allow_hosts: Vec<String>,
    /// Do without features of the kernel, as on an older one (docs/kernels.md)
    #[arg(long, value_name = "FEATURE,…", value_delimiter = ',', hide = true)]
    pub without_kernel: Vec<String>,
    /// How to log ($GITMOUNT_LOG sets the level)
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "text")]
    pub log_format: LogFormat,
}

/// `--log-format`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Lines for people
    Text,
    /// An object a line
    Json,
}

/// `gitmount verify`.
#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// URL of a fetched repository, or a mount point
    #[arg(value_name = "URL|DIR")]
    pub what: OsString,
    /// Where fetched repositories are kept.
    #[command(flatten)]
    pub store: StoreArg,
    /// Which daemon serves the mount point, if any.
    #[command(flatten)]
    pub socket: SocketArg,
}

/// `gitmount gc`.
#[derive(Debug, Args)]
pub struct GcArgs {
    /// URL of a fetched repository [default: all]
    #[arg(value_name = "URL")]
    pub url: Option<String>,
    /// Remove this repository as a whole; what is mounted from it must be unmounted first
    #[arg(long, value_name = "URL", conflicts_with = "url")]
    pub drop: Option<String>,
    /// Where fetched repositories are kept.
    #[command(flatten)]
    pub store: StoreArg,
}

/// `gitmount hold`.
#[derive(Debug, Args)]
pub struct HoldArgs {
    /// The unix socket to listen on
    #[arg(long, value_name = "PATH")]
    pub socket: PathBuf,
}

/// `gitmount completions`.
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    pub shell: Shell,
}
