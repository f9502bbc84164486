//! What opens a door for a node: a token that lets a machine join, and the secret of a node's own identity. They are told
//! apart, and from tokens of the API, by how they begin.

use sha2::{Digest, Sha256};

/// How a join token begins.
pub const JOIN_TOKEN: &str = "tenure-join-";
/// How the secret of a node's identity begins.
pub const NODE_SECRET: &str = "tenure-node-";

/// A secret of this kind from bytes that nobody can guess.
pub fn secret(kind: &str, bytes: &[u8; 32]) -> String {
    format!("{kind}{}", hex(bytes))
}

/// What is written down of a secret.
pub fn digest(secret: &str) -> String {
    hex(&Sha256::digest(secret.as_bytes()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_told_apart_and_digests_are_sha_256() {
        let made = secret(JOIN_TOKEN, &[0xab; 32]);
        assert!(made.starts_with(JOIN_TOKEN) && !made.starts_with(NODE_SECRET) && made.ends_with("abab"));
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(digest("abc"), abc);
    }
}
