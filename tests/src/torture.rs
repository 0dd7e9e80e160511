//! Readers that check, under any number of switches, that what they see is one commit at a time and never an older one than before.
//!
//! - [`history`]: some dozen commits of one small tree, with every kind of change between them, and what each of them holds.
//! - [`epochs`]: the sequence of switches, and which of them an observation can belong to.
//! - [`readers`]: threads that stat, read and list without pause.
//!
//! The rule: every observation (bytes of a file, the names of a listing, that a name is missing) fits a set of commits. A reader keeps the
//! earliest switch that all its observations so far can be explained with; the next one must be explained by that or a later switch that
//! has begun. What was finished before an operation began must be seen by it.

pub mod epochs;
pub mod history;
pub mod readers;
