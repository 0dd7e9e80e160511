//! `gitmount-image`: writes the container image of gitmount from programs that are built already. `make image` builds them.

use std::fs;
use std::io::BufWriter;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Parser;
use gitmount_image::release::{self, Sources};

/// Writes the container image of gitmount: a tar for `docker load`, `ctr images import`, `skopeo copy` and the like.
#[derive(Debug, Parser)]
struct Args {
    /// The directory with the programs, built for a musl target
    #[arg(long)]
    programs: PathBuf,
    /// The file to write
    #[arg(long)]
    output: PathBuf,
    /// The name of the image
    #[arg(long, default_value = concat!("gitmount:", env!("CARGO_PKG_VERSION")))]
    name: String,
    /// The directory with the licences
    #[arg(long, default_value = ".")]
    licences: PathBuf,
    /// Certificates of authorities
    #[arg(long, default_value = release::AUTHORITIES)]
    authorities: PathBuf,
    /// The commit that it is built from, for a label
    #[arg(long)]
    revision: Option<String>,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let image = release::image(&Sources {
        programs: args.programs,
        licences: args.licences,
        authorities: args.authorities,
        revision: args.revision.filter(|revision| !revision.is_empty()),
    })?;
    // It is whole or not there.
    let unfinished = args.output.with_extension("unfinished");
    let file = fs::File::create(&unfinished).with_context(|| format!("{} cannot be written", unfinished.display()))?;
    let written = image.write(&args.name, BufWriter::new(file))?;
    fs::rename(&unfinished, &args.output)?;
    let megabytes = |bytes: usize| bytes as f64 / 1e6;
    println!("{} is {}, {}", args.output.display(), args.name, written.digest);
    println!("{:.1} MB to fetch, {:.1} MB unpacked", megabytes(written.compressed), megabytes(written.unpacked));
    Ok(())
}
