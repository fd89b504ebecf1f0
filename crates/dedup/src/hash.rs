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
