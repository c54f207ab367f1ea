//! The container image for all targets, as a tar file of the OCI image layout: no daemon is needed to make it.
//! `docker load`, `podman load` and `skopeo copy oci-archive:` read it.
//!
//! Its contents are those of deploy/container/Containerfile: the executable and licences, nothing else.
//! Source: <https://github.com/opencontainers/image-spec>.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::extras::Extras;
use super::{Built, VERSION, copy_licences, output, staging, tar};

const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
/// The name of an image in `index.json`.
const REFERENCE: &str = "org.opencontainers.image.ref.name";

/// The folder with the layout, of which the tar file is made.
pub(super) fn layout(dist: &Path) -> PathBuf {
    dist.join("staging/image/layout")
}

/// The name of the image for one architecture; `VERSION` alone names that for all.
pub(super) fn reference(architecture: &str) -> String {
    format!("{VERSION}-{architecture}")
}

pub(super) fn pack(builds: &[Built], extras: &Extras, dist: &Path) -> Result<PathBuf> {
    let stage = staging(dist, "image")?;
    let layout = layout(dist);
    let blobs = layout.join("blobs/sha256");
    fs::create_dir_all(&blobs)?;
    let mut platforms = Vec::new();
    let mut named = Vec::new();
    for built in builds {
        let architecture = built.target.oci;
        let mut image = image(built, extras, &stage.join(architecture), &blobs)?;
        platforms.push(image.clone());
        image["annotations"] = json!({ REFERENCE: reference(architecture) });
        named.push(image);
    }
    let all = json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": platforms });
    let mut all = blob(INDEX, &serde_json::to_vec(&all)?, &blobs)?;
    all["annotations"] = json!({ REFERENCE: VERSION });
    named.insert(0, all);
    let index = json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": named });
    fs::write(layout.join("index.json"), serde_json::to_vec(&index)?)?;
    fs::write(layout.join("oci-layout"), br#"{"imageLayoutVersion":"1.0.0"}"#)?;
    let file = dist.join(format!("standfast-{VERSION}-oci.tar"));
    tar(&layout, &["oci-layout", "index.json", "blobs"], &file)?;
    Ok(file)
}

/// Writes the blobs of one architecture; returns the descriptor of its manifest.
fn image(built: &Built, extras: &Extras, stage: &Path, blobs: &Path) -> Result<Value> {
    let root = stage.join("root");
    copy_licences(extras, &root)?;
    fs::copy(&built.executable, root.join("standfast"))?;
    let layer = stage.join("layer.tar");
    tar(&root, &["."], &layer)?;
    let uncompressed = sha256(&layer)?;
    built.gzip(&layer)?;
    let layer = blob(LAYER, &fs::read(stage.join("layer.tar.gz"))?, blobs)?;
    let config = json!({
        // The same bytes on every day.
        "created": "1970-01-01T00:00:00Z",
        "architecture": built.target.oci,
        "os": "linux",
        "config": {
            // The user nobody: no privileges are needed.
            "User": "65534:65534",
            "ExposedPorts": { "8080/tcp": {}, "8090/tcp": {} },
            "Entrypoint": ["/standfast"],
            "Cmd": ["serve"],
            "WorkingDir": "/",
            "StopSignal": "SIGTERM",
            "Labels": {
                "org.opencontainers.image.title": "standfast",
                "org.opencontainers.image.version": VERSION,
                "org.opencontainers.image.licenses": "MIT OR Apache-2.0",
            },
        },
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{uncompressed}")] },
        "history": [{ "created": "1970-01-01T00:00:00Z", "created_by": "cargo xtask dist" }],
    });
    let config = blob(CONFIG, &serde_json::to_vec(&config)?, blobs)?;
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": config,
        "layers": [layer],
    });
    let mut manifest = blob(MANIFEST, &serde_json::to_vec(&manifest)?, blobs)?;
    manifest["platform"] = json!({ "architecture": built.target.oci, "os": "linux" });
    Ok(manifest)
}

/// Stores bytes under their digest; returns the descriptor that refers to them.
fn blob(media_type: &str, bytes: &[u8], blobs: &Path) -> Result<Value> {
    let unnamed = blobs.join("unnamed");
    fs::write(&unnamed, bytes)?;
    let digest = sha256(&unnamed)?;
    fs::rename(&unnamed, blobs.join(&digest))?;
    Ok(
        json!({ "mediaType": media_type, "digest": format!("sha256:{digest}"), "size": bytes.len() }),
    )
}

fn sha256(file: &Path) -> Result<String> {
    let line = output(Command::new("sha256sum").arg(file))?;
    Ok(line.split_whitespace().next().context("sha256sum prints a sum")?.to_owned())
}
