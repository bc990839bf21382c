//! Certificates, made by openssl.

use std::path::PathBuf;
use std::process::Command;

use crate::world::temp_dir;

/// A CA, a server's certificate, a client's, and another client's that a different CA has signed.
pub(crate) struct Certificates(PathBuf);

impl Drop for Certificates {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Certificates {
    pub(crate) fn new() -> Certificates {
        let made = Certificates(temp_dir());
        std::fs::write(made.0.join("req"), "[req]\ndistinguished_name = name\n[name]\n").expect("write");
        std::fs::write(made.0.join("users"), "user:pass\n").expect("write");
        for (name, ca) in [
            ("ca", None),
            ("other", None),
            ("server", Some("ca")),
            ("client", Some("ca")),
            ("stranger", Some("other")),
        ] {
            made.make(name, ca);
        }
        made
    }

    fn make(&self, name: &str, ca: Option<&str>) {
        self.make_for(name, ca, 2);
    }

    /// A certificate that is valid for so many days.
    pub(crate) fn make_for(&self, name: &str, ca: Option<&str>, days: u32) {
        let (key, cert) = (self.path(&format!("{name}.key")), self.path(&format!("{name}.pem")));
        let mut command = Command::new("openssl");
        command.args(["req", "-x509", "-nodes", "-newkey", "ec", "-days", &days.to_string()]);
        command.args(["-pkeyopt", "ec_paramgen_curve:prime256v1", "-config", &self.path("req")]);
        command.args(["-subj", &format!("/CN={name}"), "-keyout", &key, "-out", &cert, "-addext"]);
        match ca {
            None => command.arg("basicConstraints=critical,CA:TRUE"),
            Some(ca) => {
                command.args([
                    "basicConstraints=critical,CA:FALSE",
                    "-addext",
                    "subjectAltName=IP:127.0.0.1,DNS:localhost",
                ]);
                command.args(["-CA", &self.path(&format!("{ca}.pem"))]);
                command.args(["-CAkey", &self.path(&format!("{ca}.key"))])
            }
        };
        let output = command.output().expect("run openssl");
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// A certificate of `ca` that has expired.
    pub(crate) fn make_expired(&self, name: &str, ca: &str) {
        std::fs::write(self.path("ext"), "subjectAltName=IP:127.0.0.1\n").expect("write");
        let path = |file: &str| self.path(&format!("{name}.{file}"));
        let mut request = Command::new("openssl");
        request.args(["req", "-new", "-nodes", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]);
        request.args(["-config", &self.path("req"), "-subj", &format!("/CN={name}")]);
        request.args(["-keyout", &path("key"), "-out", &path("csr")]);
        let mut sign = Command::new("openssl");
        sign.args([
            "x509",
            "-req",
            "-days",
            "-1",
            "-in",
            &path("csr"),
            "-out",
            &path("pem"),
            "-CAcreateserial",
        ]);
        sign.args(["-CA", &self.path(&format!("{ca}.pem")), "-CAkey", &self.path(&format!("{ca}.key"))]);
        sign.args(["-extfile", &self.path("ext")]);
        for mut command in [request, sign] {
            let output = command.output().expect("run openssl");
            assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
        }
    }

    /// A certificate that is its own CA, for 127.0.0.1.
    pub(crate) fn make_self_signed(&self, name: &str) {
        let (key, cert) = (self.path(&format!("{name}.key")), self.path(&format!("{name}.pem")));
        let mut command = Command::new("openssl");
        command.args(["req", "-x509", "-nodes", "-newkey", "ec", "-days", "2"]);
        command.args(["-pkeyopt", "ec_paramgen_curve:prime256v1", "-subj", &format!("/CN={name}")]);
        command.args(["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", &key, "-out", &cert]);
        let output = command.output().expect("run openssl");
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    /// A listener with the server's certificate and these additional settings.
    pub(crate) fn listener(&self, tls: &str, more: &str) -> String {
        let (cert, key) = (self.path("server.pem"), self.path("server.key"));
        format!("{{ address = \"127.0.0.1:0\", tls = {{ cert = {cert:?}, key = {key:?}{tls} }}{more} }}")
    }
}
