use softclose_fsm::control::HealthPaths;
use softclose_fsm::{FieldError, Plan, Preset, Role};

use crate::json;

/// What a root context does, from its plugin configuration; it cannot be invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Config {
    /// Counts requests on traffic listeners.
    Count {
        /// What was wrong with the configuration. Counting goes on with the defaults: refusing would answer 500 to all traffic.
        fault: Option<String>,
    },
    /// Answers health and control.
    Gate(GateConfig),
}

/// The configuration of the answering role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GateConfig {
    /// What a drain does unless its caller says otherwise.
    pub plan: Plan,
    /// What the health listener answers.
    pub paths: HealthPaths,
}

impl Config {
    /// Reads a plugin configuration; `vm` is the VM's own, which names the role where the plugin's does not.
    ///
    /// # Errors
    /// Only for the answering role: the first field that is unknown or out of bounds.
    pub fn parse(plugin: &[u8], vm: &[u8]) -> Result<Self, FieldError> {
        let vm_role = if vm.trim_ascii() == b"gate" { Role::Gate } else { Role::Count };
        let members = std::str::from_utf8(plugin).ok().and_then(json::members);
        let Some(members) = members else {
            let error = FieldError::new("configuration", &String::from_utf8_lossy(plugin), "a JSON object");
            return Self::refuse(vm_role, error);
        };
        let role = match members.iter().rfind(|(field, _)| field == "role").map(|(_, value)| text(value)).as_deref() {
            None => vm_role,
            Some("gate") => Role::Gate,
            Some("count") => Role::Count,
            Some(other) => return Self::refuse(vm_role, FieldError::new("role", other, "one of count, gate")),
        };
        match role {
            Role::Gate => GateConfig::parse(&members).map(Self::Gate),
            Role::Count => {
                let stranger = members.iter().find(|(field, _)| field != "role");
                let fault =
                    stranger.map(|(field, value)| FieldError::unknown(field, &text(value), &["role"]).to_string());
                Ok(Self::Count { fault })
            }
        }
    }

    /// What comes of a configuration that is not understood, on a VM of that role.
    fn refuse(vm: Role, error: FieldError) -> Result<Self, FieldError> {
        match vm {
            Role::Gate => Err(error),
            Role::Count => Ok(Self::Count { fault: Some(error.to_string()) }),
        }
    }

    /// The role.
    pub fn role(&self) -> Role {
        match self {
            Self::Count { .. } => Role::Count,
            Self::Gate(_) => Role::Gate,
        }
    }
}

impl Default for GateConfig {
    fn default() -> Self {
        Self { plan: Plan::preset(Preset::Haproxy), paths: HealthPaths::default() }
    }
}

impl GateConfig {
    const FIELDS: [&'static str; 4] = ["role", "plan", "balancer_path", "readiness_path"];

    fn parse(members: &[(String, &str)]) -> Result<Self, FieldError> {
        let mut config = Self::default();
        for (field, value) in members {
            match field.as_str() {
                "role" => {}
                "plan" => config.plan = plan(&config.plan, value)?,
                "balancer_path" => config.paths.balancer = path(field, value)?,
                "readiness_path" => config.paths.readiness = path(field, value)?,
                _ => return Err(FieldError::unknown(field, &text(value), &Self::FIELDS)),
            }
        }
        if config.paths.balancer == config.paths.readiness {
            return Err(FieldError::new("readiness_path", &config.paths.readiness, "another than balancer_path"));
        }
        Ok(config)
    }
}

fn plan(base: &Plan, value: &str) -> Result<Plan, FieldError> {
    let Some(fields) = json::members(value) else {
        return Err(FieldError::new("plan", &text(value), "a JSON object"));
    };
    let fields: Vec<(String, String)> = fields.into_iter().map(|(field, value)| (field, text(value))).collect();
    base.with(fields.iter().map(|(field, value)| (field.as_str(), value.as_str())))
        .map_err(|error| FieldError { field: format!("plan.{}", error.field), ..error })
}

fn path(field: &str, value: &str) -> Result<String, FieldError> {
    // As much as a balancer's configuration line is likely to hold, and nothing that the request line would escape.
    const LONGEST: usize = 256;
    let plain = |path: &String| {
        path.starts_with('/')
            && path.len() <= LONGEST
            && path.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'?' && byte != b'#')
    };
    let expected = format!("a path: / and up to {} printable ASCII characters without ? and #", LONGEST - 1);
    json::string(value).filter(plain).ok_or_else(|| FieldError::new(field, &text(value), &expected))
}

/// A value as it would stand in a query: strings bare, all else as it stands.
fn text(value: &str) -> String {
    json::string(value).unwrap_or_else(|| value.to_owned())
}

#[cfg(test)]
mod tests;
