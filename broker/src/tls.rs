//! Certificates of one broker: an authority, and a certificate for `localhost` and 127.0.0.1 that it signs.
//!
//! Owns three files. The key of the authority is used once and not stored.

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

use crate::error::Error;
use crate::files::Files;

pub(crate) fn write(files: &Files) -> Result<(), Error> {
    let [ca, certificate, key] = generate().map_err(|error| Error::System {
        action: "create certificates".to_owned(),
        error: std::io::Error::other(error),
    })?;
    files.put("ca.pem", &ca)?;
    files.put("server.pem", &certificate)?;
    files.put("server.key", &key)
}

fn generate() -> Result<[String; 3], rcgen::Error> {
    let mut ca_params = CertificateParams::new([])?;
    ca_params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    ca_params.distinguished_name.push(DnType::CommonName, "Gristmill's tests");
    let ca_key = KeyPair::generate()?;
    let ca = ca_params.self_signed(&ca_key)?.pem();
    let key = KeyPair::generate()?;
    let mut server_params = CertificateParams::new(["localhost".to_owned(), "127.0.0.1".to_owned()])?;
    server_params.distinguished_name.push(DnType::CommonName, "localhost");
    let certificate = server_params.signed_by(&key, &Issuer::new(ca_params, ca_key))?;
    Ok([ca, certificate.pem(), key.serialize_pem()])
}
