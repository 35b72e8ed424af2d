//! Connects the clients of this crate to the test server of testkit.

use pierhead_testkit::http::server::TestServer;
use rustls::RootCertStore;

use super::{Authorization, Server, TlsConfigs, Url};

/// The settings with which a client of this crate connects to a test server.
pub(crate) trait Connect {
    /// Returns the settings without credentials.
    fn server(&self) -> Server {
        self.server_as(None)
    }

    fn server_as(&self, authorization: Option<&str>) -> Server;
}

impl Connect for TestServer {
    fn server_as(&self, authorization: Option<&str>) -> Server {
        let url = Url::parse(&self.url()).expect("a URL");
        let tls = TlsConfigs::new(RootCertStore::empty, None, None).expect("nothing to read");
        let authorization = authorization.map(|value| Authorization::new(value.to_owned()));
        Server::new(url, tls, authorization)
    }
}
