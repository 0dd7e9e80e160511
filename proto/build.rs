//! Generates the types and services from the `.proto` files, without a `protoc` program.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = ["fsd/v1/control.proto", "csi/v1/csi.proto", "csi/v1/controller.proto", "pluginregistration/v1/registration.proto"];
    for file in files {
        println!("cargo:rerun-if-changed={file}");
    }
    let descriptors = protox::compile(files, ["."])?;
    // What has a secret in it gets a `Debug` that does not show it, see `src/secret.rs`.
    let fsd = ["Token", "Ssh", "Credential", "PublishRequest", "UpdateCredentialRequest"].map(|m| format!(".gitmount.fsd.v1.{m}"));
    let csi = ["NodeStageVolumeRequest", "NodePublishVolumeRequest"].map(|m| format!(".csi.v1.{m}"));
    tonic_prost_build::configure().skip_debug(fsd.iter().chain(&csi)).compile_fds(descriptors)?;
    Ok(())
}
