//! Compiles the contract with a compiler written in Rust: the machine needs no protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto/agents.proto");
    let contract = protox::compile(["proto/agents.proto"], ["proto"])?;
    tonic_prost_build::configure().btree_map(".").bytes(".").compile_fds(contract)?;
    Ok(())
}
