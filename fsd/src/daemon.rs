//! One served mount from URL to FUSE: fetch, follow, report.
