package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Variables that name servers outside the places of distributions.
const (
	// EnvPostgresBin names the directory that holds postgres and initdb.
	EnvPostgresBin = "WEIR_PG_BIN"
	// EnvPostgresBundle names an unpacked bundle of PostgreSQL binaries, such as zonky or
	// pgserver publish: a directory that has a bin directory, or whose child has one.
	EnvPostgresBundle = "WEIR_PG_BUNDLE"
	// EnvPgBouncer names the pgbouncer program.
	EnvPgBouncer = "WEIR_PGBOUNCER"
)

// NotInstalledError says that a server is not installed on this machine. Tests skip on it,
// except in CI; for operators, Hint is the command to run.
type NotInstalledError struct {
	Server string   // for example "PostgreSQL"
	Looked []string // the places that were searched
	Hint   string   // the one command that installs it
}

func (e *NotInstalledError) Error() string {
	return fmt.Sprintf("find %s: not in %s; install it with: %s", e.Server, strings.Join(e.Looked, ", "), e.Hint)
}

// version is a server's version: 15.18 is {15, 18}.
type version struct{ major, minor int }

func (v version) atLeast(major, minor int) bool {
	return v.major > major || v.major == major && v.minor >= minor
}

func (v version) String() string { return fmt.Sprintf("%d.%d", v.major, v.minor) }

var versionPattern = regexp.MustCompile(`\b(\d{1,4})(?:\.(\d{1,4})|devel|beta\d+|rc\d+)`)

// parseVersion finds the version in the output of --version, such as "postgres (PostgreSQL)
// 15.18 (Debian 15.18-0+deb12u1)", "postgres (PostgreSQL) 19devel" or "PgBouncer 1.18.0". A
// version without a minor part has minor 0.
func parseVersion(s string) (version, error) {
	m := versionPattern.FindStringSubmatch(s)
	if m == nil {
		return version{}, fmt.Errorf("parse version: no version in %q", lastLines(s, 1))
	}
	major, err := strconv.Atoi(m[1])
	if err != nil {
		return version{}, fmt.Errorf("parse version: %w", err)
	}
	minor := 0
	if m[2] != "" {
		if minor, err = strconv.Atoi(m[2]); err != nil {
			return version{}, fmt.Errorf("parse version: %w", err)
		}
	}
	return version{major, minor}, nil
}

// postgresBinaries is one installation of PostgreSQL.
type postgresBinaries struct {
	dir     string // holds postgres and initdb
	version version
	text    string // output of postgres --version, which identifies the build
}

func (b postgresBinaries) path(name string) string { return filepath.Join(b.dir, name) }

// hasLibrary reports whether a loadable module is installed.
func (b postgresBinaries) hasLibrary(name string) bool {
	for _, dir := range []string{"../lib", "../lib/postgresql"} {
		if isFile(filepath.Join(b.dir, dir, name+".so")) {
			return true
		}
	}
	return false
}

// initdbArgs make a data directory that fits every configuration: what differs between servers
// (settings, authentication, passwords) is written afterwards. --no-sync: a lab directory has
// no value before its server runs.
var initdbArgs = []string{
	"-U", superuser, "-A", "trust", "-E", "UTF8", "--no-sync", "--no-instructions",
}

// cluster says how this installation makes a data directory.
func (b postgresBinaries) cluster() dataTemplate {
	return dataTemplate{
		name: "postgres-" + b.version.String(),
		key:  b.dir + "\x00" + b.text + "\x00" + strings.Join(initdbArgs, "\x00"),
		make: func(ctx context.Context, dst string, as *identity) error {
			_, err := runCommand(ctx, command{
				path: b.path("initdb"), args: append([]string{"-D", dst}, initdbArgs...), dir: dst, as: as,
			})
			return err
		},
	}
}

// FindPostgres returns the directory that holds postgres and initdb, and their version, such as
// "15.18". It takes the first of binDir (if not empty), $WEIR_PG_BIN, the newest
// /usr/lib/postgresql/*/bin, the PATH, and $WEIR_PG_BUNDLE. The error is a *NotInstalledError
// if there is none.
func FindPostgres(ctx context.Context, binDir string) (dir, version string, err error) {
	b, err := findPostgres(ctx, binDir)
	if err != nil {
		return "", "", err
	}
	return b.dir, b.version.String(), nil
}

func findPostgres(ctx context.Context, binDir string) (postgresBinaries, error) {
	if binDir == "" {
		binDir = os.Getenv(EnvPostgresBin)
	}
	if binDir != "" { // requested explicitly: use no other
		if !isPostgresDir(binDir) {
			return postgresBinaries{}, fmt.Errorf("find PostgreSQL: %s does not hold postgres and initdb", binDir)
		}
		return inspectPostgres(ctx, binDir)
	}
	for _, dir := range postgresDirs() {
		if isPostgresDir(dir) {
			return inspectPostgres(ctx, dir)
		}
	}
	return postgresBinaries{}, &NotInstalledError{
		Server: "PostgreSQL",
		Looked: []string{"$" + EnvPostgresBin, "/usr/lib/postgresql/*/bin", "the PATH", "$" + EnvPostgresBundle},
		Hint:   "apt-get install postgresql",
	}
}

// postgresDirs lists the candidates, best first.
func postgresDirs() []string {
	dirs, _ := filepath.Glob("/usr/lib/postgresql/*/bin")
	slices.SortFunc(dirs, func(a, b string) int { return majorOf(b) - majorOf(a) })
	if path, err := exec.LookPath("postgres"); err == nil {
		if real, err := filepath.EvalSymlinks(path); err == nil {
			dirs = append(dirs, filepath.Dir(real))
		}
	}
	if bundle := os.Getenv(EnvPostgresBundle); bundle != "" {
		below, _ := filepath.Glob(filepath.Join(bundle, "*", "bin"))
		dirs = append(append(dirs, filepath.Join(bundle, "bin")), below...)
	}
	return dirs
}

// majorOf returns the number in /usr/lib/postgresql/NUMBER/bin, or 0.
func majorOf(binDir string) int {
	n, err := strconv.Atoi(filepath.Base(filepath.Dir(binDir)))
	if err != nil {
		return 0
	}
	return n
}

func isPostgresDir(dir string) bool {
	return isFile(filepath.Join(dir, "postgres")) && isFile(filepath.Join(dir, "initdb"))
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

func inspectPostgres(ctx context.Context, dir string) (postgresBinaries, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return postgresBinaries{}, fmt.Errorf("find PostgreSQL: %w", err)
	}
	// Even root may run postgres --version.
	out, err := askVersion(ctx, filepath.Join(dir, "postgres"), "--version")
	if err != nil {
		return postgresBinaries{}, fmt.Errorf("ask PostgreSQL for its version: %w", err)
	}
	v, err := parseVersion(out)
	if err != nil {
		return postgresBinaries{}, err
	}
	return postgresBinaries{dir, v, strings.TrimSpace(out)}, nil
}

// versions caches the versions of programs, by programID: each start of a server needs it, and
// asking MariaDB took 27 ms.
var versions sync.Map

// programID identifies a program file: a replaced one is asked again.
type programID struct {
	path string
	ino  uint64
	size int64
	mod  unix.Timespec
}

// askVersion runs a program to print its version, once per process.
func askVersion(ctx context.Context, path string, args ...string) (string, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return "", &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	id := programID{path, st.Ino, st.Size, st.Mtim}
	if known, ok := versions.Load(id); ok {
		return known.(string), nil
	}
	out, err := runCommand(ctx, command{path: path, args: args, dir: "/"})
	if err == nil {
		versions.Store(id, out)
	}
	return out, err
}

// findPgBouncer returns the path and version of pgbouncer: binary if not empty, else the first
// of $WEIR_PGBOUNCER, the PATH, /usr/sbin.
func findPgBouncer(ctx context.Context, binary string) (string, version, error) {
	if binary == "" {
		binary = os.Getenv(EnvPgBouncer)
	}
	if binary == "" {
		if path, err := exec.LookPath("pgbouncer"); err == nil {
			binary = path
		} else if isFile("/usr/sbin/pgbouncer") { // not in an ordinary user's PATH
			binary = "/usr/sbin/pgbouncer"
		} else {
			return "", version{}, &NotInstalledError{
				Server: "PgBouncer",
				Looked: []string{"$" + EnvPgBouncer, "the PATH", "/usr/sbin"},
				Hint:   "apt-get install pgbouncer",
			}
		}
	}
	binary, err := filepath.Abs(binary)
	if err != nil {
		return "", version{}, fmt.Errorf("find PgBouncer: %w", err)
	}
	out, err := askVersion(ctx, binary, "--version")
	if err != nil {
		return "", version{}, fmt.Errorf("ask PgBouncer for its version: %w", err)
	}
	v, err := parseVersion(out)
	return binary, v, err
}

// NotInstalled reports whether err says that a server is not installed on this machine.
func NotInstalled(err error) bool {
	var e *NotInstalledError
	return errors.As(err, &e)
}
