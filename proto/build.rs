//! Generates the types and services from the `.proto` files, without a `protoc` program.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = ["fsd/v1/control.proto"];
    for file in files {
        println!("cargo:rerun-if-changed={file}");
    }
    let descriptors = protox::compile(files, ["."])?;
    // What has a secret in it gets a `Debug` that does not show it, see `src/secret.rs`.
    let secret = ["Token", "Ssh", "Credential", "PublishRequest", "UpdateCredentialRequest"].map(|m| format!(".gitmount.fsd.v1.{m}"));
    tonic_prost_build::configure().skip_debug(&secret).compile_fds(descriptors)?;
    Ok(())
}
