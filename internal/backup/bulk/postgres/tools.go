package postgres

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/weirdb/weir/internal/wire/pgwire"
)

// EnvBin is the environment variable with the directory in which PostgreSQL's programs are
// looked for first.
const EnvBin = "WEIR_PG_BIN"

// A ToolError says that no suitable program of PostgreSQL was found.
type ToolError struct {
	Tool   string
	Server int      // major version that is needed at least
	Found  []string // programs that are too old, with versions
	Looked []string
}

// Error says what is missing and what to install.
func (e *ToolError) Error() string {
	if len(e.Found) > 0 {
		return fmt.Sprintf("%s of PostgreSQL %d or newer is needed for this server, found only %s (install postgresql-client-%d, or set $%s)",
			e.Tool, e.Server, strings.Join(e.Found, ", "), e.Server, EnvBin)
	}
	return fmt.Sprintf("%s of PostgreSQL %d or newer is needed and not installed; looked in %s (install postgresql-client-%d, or set $%s)",
		e.Tool, e.Server, strings.Join(e.Looked, ", "), e.Server, EnvBin)
}

// A Tool is one of PostgreSQL's programs.
type Tool struct {
	Path  string
	Major int

	// Warn gets what a successful program writes to its standard error, line by line. Default:
	// nil, it is dropped.
	Warn func(line string)
}

// FindTool returns the program that fits a server of the given version (150018) best: of the
// same major version, otherwise the oldest newer one. It looks in $WEIR_PG_BIN, in
// /usr/lib/postgresql/*/bin and in PATH; a program in $WEIR_PG_BIN is used if it is new enough.
func FindTool(ctx context.Context, name string, serverVersion int) (Tool, error) {
	major := serverVersion / 10000
	missing := &ToolError{Tool: name, Server: major, Looked: []string{"/usr/lib/postgresql/*/bin", "the PATH"}}
	if dir := os.Getenv(EnvBin); dir != "" {
		missing.Looked = slices.Insert(missing.Looked, 0, "$"+EnvBin)
		if t, ok := inspectTool(ctx, filepath.Join(dir, name)); ok {
			if t.Major >= major {
				return t, nil
			}
			missing.Found = append(missing.Found, fmt.Sprintf("%s (%d)", t.Path, t.Major))
		}
	}
	// The server's own version is the best choice; a program in PATH is often a script that
	// looks for one. There, the directory tells the version.
	own := fmt.Sprintf("/usr/lib/postgresql/%d/bin/%s", major, name)
	if path, err := exec.LookPath(own); err == nil {
		return Tool{Path: path, Major: major}, nil
	}
	candidates, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + name)
	if path, err := exec.LookPath(name); err == nil {
		candidates = append(candidates, path)
	}
	var best Tool
	for _, path := range candidates {
		t, ok := inspectTool(ctx, path)
		switch {
		case !ok:
		case t.Major < major:
			missing.Found = append(missing.Found, fmt.Sprintf("%s (%d)", t.Path, t.Major))
		case best.Path == "" || t.Major < best.Major:
			best = t
		}
	}
	if best.Path == "" {
		return Tool{}, missing
	}
	return best, nil
}

func inspectTool(ctx context.Context, path string) (Tool, bool) {
	out, err := exec.CommandContext(ctx, path, "--version").Output()
	if err != nil {
		return Tool{}, false
	}
	// pg_dump (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1), or 18beta1
	_, rest, ok := strings.Cut(string(out), "(PostgreSQL) ")
	if !ok {
		return Tool{}, false
	}
	i := strings.IndexFunc(rest, func(r rune) bool { return r < '0' || r > '9' })
	major, err := strconv.Atoi(rest[:max(i, 0)])
	return Tool{Path: path, Major: major}, err == nil
}

// A ToolFailure says that a program ended with an error.
type ToolFailure struct {
	Tool   string
	Stderr string // the end of its output
	Err    error
}

// Error returns what the program said.
func (e *ToolFailure) Error() string {
	if e.Stderr == "" {
		return e.Tool + ": " + e.Err.Error()
	}
	return e.Tool + ": " + strings.TrimPrefix(e.Stderr, e.Tool+": ") // programs begin with their names
}

// Unwrap returns the exit error.
func (e *ToolFailure) Unwrap() error { return e.Err }

// Run runs the tool against the server of dsn, in the given database unless it is empty, with
// its output to out. Host, user, password and all other parameters of the DSN are passed in the
// environment, because the arguments of a process are visible to all users.
func (t Tool) Run(ctx context.Context, dsn, database string, args []string, in io.Reader, out io.Writer) error {
	env, err := Environment(dsn, database)
	if err != nil {
		return err
	}
	return t.run(ctx, env, args, in, out)
}

// RunBehind runs the tool against the session behind a socket.
func (t Tool) RunBehind(ctx context.Context, socket *SessionSocket, args []string, out io.Writer) error {
	return t.run(ctx, environment(socket.params()), args, nil, out)
}

func (t Tool) run(ctx context.Context, env, args []string, in io.Reader, out io.Writer) error {
	cmd := exec.CommandContext(ctx, t.Path, args...)
	cmd.Env = env
	cmd.Stdin, cmd.Stdout = in, out
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	cmd.WaitDelay = 10 * time.Second
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.SysProcAttr = sysProcAttr()
	if err := cmd.Run(); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		words := strings.TrimSpace(stderr.String())
		if len(words) > 2000 {
			words = words[:2000] + " …"
		}
		return &ToolFailure{filepath.Base(t.Path), strings.ReplaceAll(words, "\n", "; "), err}
	}
	if t.Warn != nil {
		for line := range strings.Lines(stderr.String()) {
			if line = strings.TrimSpace(line); line != "" {
				t.Warn(line)
			}
		}
	}
	return nil
}

// environmentOf maps the parameters of a DSN to libpq's environment variables.
var environmentOf = map[string]string{
	"host": "PGHOST", "hostaddr": "PGHOSTADDR", "port": "PGPORT", "user": "PGUSER", "password": "PGPASSWORD",
	"passfile": "PGPASSFILE", "dbname": "PGDATABASE", "application_name": "PGAPPNAME", "options": "PGOPTIONS",
	"connect_timeout": "PGCONNECT_TIMEOUT", "sslmode": "PGSSLMODE", "sslnegotiation": "PGSSLNEGOTIATION",
	"sslrootcert": "PGSSLROOTCERT", "sslcert": "PGSSLCERT", "sslkey": "PGSSLKEY",
	"ssl_min_protocol_version": "PGSSLMINPROTOCOLVERSION", "channel_binding": "PGCHANNELBINDING",
	"gssencmode": "PGGSSENCMODE", "require_auth": "PGREQUIREAUTH", "target_session_attrs": "PGTARGETSESSIONATTRS",
}

// toolOptions are settings of the programs' own sessions: their output must read the same
// regardless of the configuration of server, database and role.
const toolOptions = "-c standard_conforming_strings=on -c escape_string_warning=off -c quote_all_identifiers=off -c array_nulls=on -c client_min_messages=warning"

// Environment returns the environment in which a program of PostgreSQL connects to dsn, with
// database in place of the DSN's if it is not empty.
func Environment(dsn, database string) ([]string, error) {
	params, err := pgwire.DSNParams(dsn)
	if err != nil {
		return nil, err
	}
	params = maps.Clone(params)
	if database != "" {
		params["dbname"] = database
	}
	params["options"] = strings.TrimSpace(cmp.Or(params["options"], os.Getenv("PGOPTIONS")) + " " + toolOptions)
	maps.DeleteFunc(params, func(_, value string) bool { return value == "" })
	return environment(params), nil
}

func environment(params map[string]string) []string {
	set := map[string]string{}
	for key, value := range params {
		if name, ok := environmentOf[key]; ok {
			set[name] = value
		}
	}
	_, named := params["host"]
	env := slices.DeleteFunc(os.Environ(), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		_, replaced := set[name]
		// A service, and an address beside a host, would override params.
		replaced = replaced || name == "PGSERVICE" || name == "PGHOSTADDR" && named
		// Messages are parsed by this package: no translation.
		return replaced || name == "LC_ALL" || name == "LC_MESSAGES" || name == "LANGUAGE" || name == "PGCLIENTENCODING"
	})
	env = append(env, "LC_ALL=C")
	for name, value := range set {
		env = append(env, name+"="+value)
	}
	return env
}
