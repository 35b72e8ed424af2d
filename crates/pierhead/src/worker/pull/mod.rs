//! `pierhead pull`.

mod plain;

use super::names;
use super::session::Session;
use crate::cli::worker::PullArgs;
use crate::environment::Environment;
use crate::failure::Failure;

/// Runs it.
pub(crate) fn run(args: &PullArgs, environment: &Environment) -> Result<(), Failure> {
    let server = super::server(&args.via, &args.login, environment)?;
    let mut session = Session::new(&server);
    session.connect()?;
    let platform = names::platform(args.platform.as_ref());
    let image = plain::resolve(&mut session, &args.image, &platform)?;
    std::fs::create_dir_all(&args.into)?;
    for blob in image.layers.iter().chain([&image.config]) {
        let to = args.into.join(blob.digest.hex());
        plain::blob(&mut session, &args.image, blob, &to, &mut |_| ())?;
    }
    println!(
        "{} {} {}",
        image.digest,
        image.manifest.bytes.len(),
        server.received()
    );
    Ok(())
}
