//! What `cargo metadata` says about the workspace, reduced to what the checks ask.

use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// One dependency as a crate's manifest names it.
pub struct Dependency {
    /// Package name.
    pub name: String,
    /// Only tests, examples and benches see it.
    pub dev: bool,
}

/// One package of the resolved graph.
pub struct Package {
    /// Package name.
    pub name: String,
    /// It belongs to this workspace.
    pub local: bool,
    /// Folder of its manifest.
    pub folder: String,
    /// What it names as dependencies.
    pub dependencies: Vec<Dependency>,
}

/// Where Forebay runs; packages for other systems do not count.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// All packages that the lock file resolves to on Linux.
pub fn packages(root: &Path) -> Result<Vec<Package>, String> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--locked", "--filter-platform", TARGET])
        .current_dir(root)
        .output()
        .map_err(|e| format!("cannot run cargo metadata: {e}"))?;
    if !output.status.success() {
        return Err(format!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    let json: Value =
        serde_json::from_slice(&output.stdout).map_err(|e| format!("cargo metadata: {e}"))?;
    let list = json["packages"].as_array().ok_or("cargo metadata: no packages")?;
    Ok(list.iter().map(package).collect())
}

fn package(value: &Value) -> Package {
    let text = |key: &str| value[key].as_str().unwrap_or_default().to_string();
    let dependencies = value["dependencies"].as_array().into_iter().flatten();
    Package {
        name: text("name"),
        local: value["source"].is_null(),
        folder: text("manifest_path").trim_end_matches("/Cargo.toml").to_string(),
        dependencies: dependencies
            .map(|d| Dependency {
                name: d["name"].as_str().unwrap_or_default().to_string(),
                dev: d["kind"].as_str() == Some("dev"),
            })
            .collect(),
    }
}
