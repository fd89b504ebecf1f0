//! Computes hashes of file contents with one of four algorithms.

use gristmill_store::catalog::Algorithm;
use sha2::Digest;

pub(crate) enum Hasher {
    // Boxed, because its state is much larger than those of the others.
    Blake3(Box<blake3::Hasher>),
    Sha256(sha2::Sha256),
    Sha512(sha2::Sha512),
    Sha3(sha3::Sha3_256),
}

impl Hasher {
    pub(crate) fn new(algorithm: Algorithm) -> Self {
        match algorithm {
            Algorithm::Blake3 => Hasher::Blake3(Box::new(blake3::Hasher::new())),
            Algorithm::Sha256 => Hasher::Sha256(sha2::Sha256::new()),
            Algorithm::Sha512 => Hasher::Sha512(sha2::Sha512::new()),
            Algorithm::Sha3 => Hasher::Sha3(sha3::Sha3_256::new()),
        }
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        match self {
            Hasher::Blake3(hasher) => drop(hasher.update(bytes)),
            Hasher::Sha256(hasher) => hasher.update(bytes),
            Hasher::Sha512(hasher) => hasher.update(bytes),
            Hasher::Sha3(hasher) => hasher.update(bytes),
        }
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        match self {
            Hasher::Blake3(hasher) => hasher.finalize().as_bytes().to_vec(),
            Hasher::Sha256(hasher) => hasher.finalize().to_vec(),
            Hasher::Sha512(hasher) => hasher.finalize().to_vec(),
            Hasher::Sha3(hasher) => hasher.finalize().to_vec(),
        }
    }
}

/// Returns the hash of a content that is in memory as a whole.
pub(crate) fn hash_bytes(algorithm: Algorithm, bytes: &[u8]) -> Vec<u8> {
    match algorithm {
        // Avoids a hasher's state, which is larger than most small files.
        Algorithm::Blake3 => blake3::hash(bytes).as_bytes().to_vec(),
        _ => {
            let mut hasher = Hasher::new(algorithm);
            hasher.update(bytes);
            hasher.finish()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write as _;

    #[test]
    fn hashes_match_the_standards_examples() {
        for (algorithm, expected) in [
            (Algorithm::Blake3, "6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85"),
            (Algorithm::Sha256, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
            (
                Algorithm::Sha512,
                "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a\
                 2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f",
            ),
            (Algorithm::Sha3, "3a985da74fe225b2045c172d6bd390bd855f086e3e9d525b46bfe24511431532"),
        ] {
            let mut hasher = Hasher::new(algorithm);
            hasher.update(b"a");
            hasher.update(b"bc");
            for hash in [hasher.finish(), hash_bytes(algorithm, b"abc")] {
                let hex = hash.iter().fold(String::new(), |mut hex, byte| {
                    let _ = write!(hex, "{byte:02x}");
                    hex
                });
                assert_eq!(hex, expected, "{algorithm:?}");
                assert_eq!(hash.len(), algorithm.length());
            }
        }
    }
}
