//! `POST /server/drain?name=NAME`, `POST /server/undrain?name=NAME`: the keys of a server move to their standby servers, or return. 200
//! once they have, or 422 and the reason.

use hyper::StatusCode;

use super::{Asked, Needs, Replying, Route, Verb};
use crate::admin::query::parameters;
use crate::admin::replies::{TEXT, reply};
use crate::failover::Wish;

pub(super) const DRAIN: Route = Route {
    path: "/server/drain",
    verb: Verb::Post,
    needs: Needs::Change,
    reply: |asked| move_keys(asked, Wish::Drain),
};
pub(super) const UNDRAIN: Route = Route {
    path: "/server/undrain",
    verb: Verb::Post,
    needs: Needs::Change,
    reply: |asked| move_keys(asked, Wish::Return),
};

fn move_keys(asked: Asked, wish: Wish) -> Replying {
    Box::pin(async move {
        let server = match server(&asked.query) {
            Ok(server) => server,
            Err(why) => return reply(StatusCode::BAD_REQUEST, TEXT, format!("{why}\n")),
        };
        match asked.view.move_keys(server, wish).await {
            Ok(done) => reply(StatusCode::OK, TEXT, done),
            Err(why) => reply(StatusCode::UNPROCESSABLE_ENTITY, TEXT, format!("{why}\n")),
        }
    })
}

fn server(query: &str) -> Result<String, String> {
    let mut server = None;
    for (name, value) in parameters(query)? {
        match &*name {
            "name" => server = String::from_utf8(value).ok(),
            _ => return Err(format!("unknown parameter {}", crate::proxy::shown(name.as_bytes()))),
        }
    }
    server.ok_or_else(|| "name=NAME is missing: a server, as the configuration names it".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_move_names_one_server() {
        assert_eq!(server("name=10.0.0.1:11211").as_deref(), Ok("10.0.0.1:11211"));
        for query in ["", "server=a", "name=a&force=1"] {
            assert!(server(query).is_err(), "{query}");
        }
    }
}
