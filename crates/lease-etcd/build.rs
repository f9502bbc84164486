//! Compiles the part of etcd's protocol that is used here, with a compiler written in Rust: the machine needs
//! no protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto/etcd.proto");
    let protocol = protox::compile(["proto/etcd.proto"], ["proto"])?;
    tonic_prost_build::configure().build_server(false).compile_fds(protocol)?;
    Ok(())
}
