//! The kinds of work that are measured, each a function that gives the rows of the table.

mod big_file;
mod cold;
mod first_mount;
mod poll;
mod second_mount;
mod switch;
mod ten_views;
mod warm;

use anyhow::Result;

use crate::bench::Bench;
use crate::report::Row;

/// One scenario.
pub(crate) type Scenario = fn(&Bench<'_>) -> Result<Vec<Row>>;

/// All of them, in the order of the table.
pub(crate) const ALL: [(&str, Scenario); 8] = [
    ("warm", warm::measure),
    ("cold", cold::measure),
    ("first-mount", first_mount::measure),
    ("second-mount", second_mount::measure),
    ("big-file", big_file::measure),
    ("switch", switch::measure),
    ("poll", poll::measure),
    ("ten-views", ten_views::measure),
];
