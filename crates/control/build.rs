//! Compiles the protocol of `proto/` without `protoc`. It may read nothing but that folder.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let control = protox::compile(["proto/control.proto"], ["proto"])?;
    tonic_prost_build::configure().compile_fds(control)?;
    Ok(())
}
