//! Certificates for one broker: an authority of its own, and by it one for `localhost` and 127.0.0.1.
//!
//! Owns three files. The authority's key is used once and written nowhere.

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

use crate::error::Error;
use crate::files::Files;

pub(crate) fn write(files: &Files) -> Result<(), Error> {
    let [ca, certificate, key] = made().map_err(|error| Error::System {
        doing: "make certificates".to_owned(),
        error: std::io::Error::other(error),
    })?;
    files.put("ca.pem", &ca)?;
    files.put("server.pem", &certificate)?;
    files.put("server.key", &key)
}

fn made() -> Result<[String; 3], rcgen::Error> {
    let mut of_ca = CertificateParams::new([])?;
    of_ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    of_ca.distinguished_name.push(DnType::CommonName, "Gristmill's tests");
    let key_of_ca = KeyPair::generate()?;
    let ca = of_ca.self_signed(&key_of_ca)?.pem();
    let key = KeyPair::generate()?;
    let mut of_server = CertificateParams::new(["localhost".to_owned(), "127.0.0.1".to_owned()])?;
    of_server.distinguished_name.push(DnType::CommonName, "localhost");
    let certificate = of_server.signed_by(&key, &Issuer::new(of_ca, key_of_ca))?;
    Ok([ca, certificate.pem(), key.serialize_pem()])
}
