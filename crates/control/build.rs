//! Compiles the protocols of `proto/` without `protoc`. It may read nothing but that folder.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let control = protox::compile(["proto/control.proto"], ["proto"])?;
    tonic_prost_build::configure().compile_fds(control)?;
    // etcd is only called.
    let etcd = protox::compile(["proto/etcd.proto"], ["proto"])?;
    tonic_prost_build::configure().build_server(false).compile_fds(etcd)?;
    Ok(())
}
