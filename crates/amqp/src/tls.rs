//! TLS connections: trusted authorities and client certificates. Verification cannot be turned off.

use crate::{
    error::Error,
    uri::{Endpoint, TlsFiles},
};
use std::{path::Path, sync::Arc};
use tokio::net::TcpStream;
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{
        ClientConfig, RootCertStore,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
    },
};

/// Connects with TLS. Files are read each time, because certificates are renewed while a consumer runs.
pub(crate) async fn connect(
    stream: TcpStream,
    endpoint: &Endpoint,
    files: &TlsFiles,
) -> Result<TlsStream<TcpStream>, Error> {
    let config = config(files)?;
    let name = files.server_name.clone().unwrap_or_else(|| endpoint.host.clone());
    let server = ServerName::try_from(name)
        .map_err(|_| Error::Tls(format!("{} is not a name that a certificate can have", endpoint.host)))?;
    let connector = TlsConnector::from(Arc::new(config));
    connector.connect(server, stream).await.map_err(|source| Error::Io { to: endpoint.to_string(), source })
}

fn config(files: &TlsFiles) -> Result<ClientConfig, Error> {
    let mut roots = RootCertStore::empty();
    match &files.authorities {
        Some(file) => {
            for certificate in certificates(file)? {
                roots.add(certificate).map_err(|error| error_in(file, error))?;
            }
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    if roots.is_empty() {
        return Err(Error::Tls(
            "no certificate authority is trusted; name a file of them with ?cacertfile=".to_owned(),
        ));
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::Tls(error.to_string()))?
        .with_root_certificates(roots);
    match (&files.certificate, &files.key) {
        (Some(certificate), Some(key)) => {
            let private_key = PrivateKeyDer::from_pem_file(key).map_err(|error| error_in(key, error))?;
            let built = builder.with_client_auth_cert(certificates(certificate)?, private_key);
            built.map_err(|error| error_in(certificate, error))
        }
        _ => Ok(builder.with_no_client_auth()),
    }
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let found = CertificateDer::pem_file_iter(file).map_err(|error| error_in(file, error))?;
    let found: Vec<_> = found.collect::<Result<_, _>>().map_err(|error| error_in(file, error))?;
    if found.is_empty() {
        return Err(error_in(file, "the file has no certificate"));
    }
    Ok(found)
}

fn error_in(file: &Path, error: impl std::fmt::Display) -> Error {
    Error::Tls(format!("{}: {error}", file.display()))
}
