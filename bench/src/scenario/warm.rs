//! Reading a tree that was read before, and what memory that left in the process that serves it.

use anyhow::Result;
use gitmount_tests::mount::Account;

use crate::bench::{Bench, memory};
use crate::clock::{Samples, in_turns, time_shell};
use crate::report::{Limit, Row, Unit};

/// What is done, and the row's name. GNU tar reads no file when it sees /dev/null as its output, hence the pipe.
const WORK: [(&str, &str); 3] = [
    ("warm `find -type f`", "find . -type f >/dev/null"),
    ("warm `tar c`", "tar -cf - . | cat >/dev/null"),
    ("warm `grep -r`", "grep -rF 'no file has this text' . >/dev/null"),
];

/// Warm `find`, `tar` and `grep`, in turns with the same on the checkout.
pub(crate) fn measure(bench: &Bench<'_>) -> Result<Vec<Row>> {
    let account = Account::new()?;
    let mounted = account.mount(&bench.url(), &[])?;
    let mut rows = Vec::new();
    for (name, script) in WORK {
        // Once unmeasured: the checkout was just written, the mount was never read.
        time_shell(&bench.checkout, script)?;
        time_shell(mounted.path(), script)?;
        let (plain, ours) = in_turns(bench.runs(), |_| time_shell(&bench.checkout, script), |_| time_shell(mounted.path(), script))?;
        rows.push(Row::compared(name, Unit::Seconds, ours, "checkout", plain, Limit::Ratio(1.05)));
    }
    let anonymous = Samples::one(memory(&account, "RssAnon")?);
    rows.push(Row::alone("anonymous memory after reading the whole tree", Unit::Bytes, anonymous, Limit::Value(64.0 * 1024.0 * 1024.0)));
    mounted.unmount()?;
    bench.keep(account);
    Ok(rows)
}
