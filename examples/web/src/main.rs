//! A URL shortener: `POST /` with a URL answers a short name, `GET /{name}` redirects. `durix-web-example FILE [ADDRESS]`
//!
//! A handler changes the maps itself, which takes as long as memory does. Then it asks a thread of this program whether the change is
//! durable. Only that thread waits for the disk, no thread of the runtime does, and many requests share one flush. A name that was
//! answered survives a power failure.

use std::sync::mpsc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Redirect;
use axum::routing::{get, post};
use durix::{Db, Level, Map};
use tokio::sync::oneshot;

#[derive(Clone)]
struct App {
    /// The last number that was given.
    last: Map<String, u64>,
    urls: Map<u64, String>,
    durable: Durable,
}

/// Answers when everything that was done before the question is durable.
#[derive(Clone)]
struct Durable(mpsc::Sender<oneshot::Sender<Result<(), String>>>);

impl Durable {
    fn start(db: Db) -> Self {
        let (sender, questions) = mpsc::channel::<oneshot::Sender<_>>();
        std::thread::spawn(move || {
            while let Ok(first) = questions.recv() {
                // One flush for all that have come while the last one ran.
                let all: Vec<_> = std::iter::once(first).chain(questions.try_iter()).collect();
                let synced = db.sync().map_err(|error| error.to_string());
                all.into_iter().for_each(|question| _ = question.send(synced.clone()));
            }
        });
        Durable(sender)
    }

    async fn wait(&self) -> Result<(), Failed> {
        let (sender, answer) = oneshot::channel();
        self.0.send(sender).map_err(|_| failed("the thread that syncs has ended"))?;
        answer.await.map_err(failed)?.map_err(failed)
    }
}

type Failed = (StatusCode, String);

fn failed(error: impl std::fmt::Display) -> Failed {
    (StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
}

async fn shorten(State(app): State<App>, url: String) -> Result<(StatusCode, String), Failed> {
    if !url.starts_with("http://") && !url.starts_with("https://") {
        return Err((StatusCode::BAD_REQUEST, "a URL begins with http:// or https://".into()));
    }
    let number = app.last.update_with("number", |last| Some(last.unwrap_or(0) + 1)).map_err(failed)?.unwrap_or(1);
    app.urls.insert(&number, &url).map_err(failed)?;
    app.durable.wait().await?;
    Ok((StatusCode::CREATED, format!("{number:x}")))
}

async fn follow(State(app): State<App>, Path(name): Path<String>) -> Result<Redirect, Failed> {
    let number = u64::from_str_radix(&name, 16).map_err(|_| (StatusCode::NOT_FOUND, "no such name".into()))?;
    let url = app.urls.get(&number).map_err(failed)?;
    Ok(Redirect::temporary(&url.ok_or((StatusCode::NOT_FOUND, "no such name".into()))?))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("the first argument is the database's file")?;
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:8080".into());
    // Changes return before they are durable; `Durable` tells when they are.
    let db = Db::builder().durability(Level::Interval(Duration::from_millis(50))).open_or_create(path)?;
    let app = App { last: db.map("last")?, urls: db.map("urls")?, durable: Durable::start(db) };
    let router = Router::new().route("/", post(shorten)).route("/{name}", get(follow)).with_state(app);
    let listener = tokio::net::TcpListener::bind(address).await?;
    println!("listening on {}", listener.local_addr()?);
    Ok(axum::serve(listener, router).await?)
}
