//! Generates the types and services from the `.proto` files, without a `protoc` program.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = ["fsd/v1/control.proto"];
    for file in files {
        println!("cargo:rerun-if-changed={file}");
    }
    let descriptors = protox::compile(files, ["."])?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    Ok(())
}
