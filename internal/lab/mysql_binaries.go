package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// Variables that name servers of the MySQL family outside the places of distributions: the
// directory that holds mariadbd or mysqld.
const (
	EnvMariaDBBin = "WEIR_MARIADB_BIN"
	EnvMySQLBin   = "WEIR_MYSQL_BIN"
)

// env is the variable for a flavor's server.
func (f Flavor) env() string {
	if f == FlavorMariaDB {
		return EnvMariaDBBin
	}
	return EnvMySQLBin
}

// programs are the names of a flavor's server, best first. Distributions with MariaDB often
// call it mysqld, too: only the version distinguishes them.
func (f Flavor) programs() []string {
	if f == FlavorMariaDB {
		return []string{"mariadbd", "mysqld"}
	}
	return []string{"mysqld"}
}

// mysqlBinaries is an installation of a server of the MySQL family.
type mysqlBinaries struct {
	flavor  Flavor
	server  string // path of mariadbd or mysqld
	client  string // path of mariadb or mysql, or ""
	base    string // the server's basedir
	version version
	full    string // such as 10.11.19
	text    string // output of --version, which identifies the build
}

// FindMySQL returns the directory that holds the server of a flavor, and its version, such as
// "10.11.19". It takes the first of binDir (if not empty), $WEIR_MARIADB_BIN or
// $WEIR_MYSQL_BIN, the PATH, /usr/sbin, /usr/libexec and /usr/local/mysql/bin. The error is a
// *NotInstalledError if there is none.
func FindMySQL(ctx context.Context, flavor Flavor, binDir string) (dir, version string, err error) {
	b, err := findMySQL(ctx, flavor, binDir)
	if err != nil {
		return "", "", err
	}
	return filepath.Dir(b.server), b.full, nil
}

func findMySQL(ctx context.Context, flavor Flavor, binDir string) (mysqlBinaries, error) {
	if binDir == "" {
		binDir = os.Getenv(flavor.env())
	}
	if binDir != "" { // requested explicitly: use no other
		for _, name := range flavor.programs() {
			if path := filepath.Join(binDir, name); isFile(path) {
				return inspectMySQL(ctx, flavor, path)
			}
		}
		return mysqlBinaries{}, fmt.Errorf("find %s: %s does not hold %s", flavor.title(), binDir, strings.Join(flavor.programs(), " or "))
	}
	for _, path := range mysqlCandidates(flavor) {
		b, err := inspectMySQL(ctx, flavor, path)
		if errors.Is(err, errOtherFlavor) {
			continue
		}
		return b, err
	}
	return mysqlBinaries{}, &NotInstalledError{
		Server: flavor.title(),
		Looked: []string{"$" + flavor.env(), "the PATH", strings.Join(mysqlDirs, ", ")},
		Hint:   flavor.installHint(),
	}
}

// installHint is the command that installs a flavor's server. No release of Debian has MySQL;
// $WEIR_MYSQL_BIN then names the unpacked program.
func (f Flavor) installHint() string {
	if f == FlavorMariaDB {
		return "apt-get install mariadb-server"
	}
	return "scripts/foreign-deb sid /opt/mysql usr/sbin/mysqld usr/bin/mysql -- mysql-server-core mysql-client-core" +
		" && export WEIR_MYSQL_BIN=/opt/mysql/usr/sbin"
}

// mysqlDirs are directories of servers outside an ordinary user's PATH.
var mysqlDirs = []string{"/usr/sbin", "/usr/libexec", "/usr/local/mysql/bin"}

// mysqlCandidates lists the programs that may be a flavor's server, best first.
func mysqlCandidates(flavor Flavor) []string {
	var found []string
	for _, name := range flavor.programs() {
		if path, err := exec.LookPath(name); err == nil {
			found = append(found, path)
		}
		for _, dir := range mysqlDirs {
			if path := filepath.Join(dir, name); isFile(path) {
				found = append(found, path)
			}
		}
	}
	return found
}

var (
	errOtherFlavor   = errors.New("a server of the other flavor")
	fullVersionMatch = regexp.MustCompile(`\b\d{1,4}\.\d{1,4}\.\d{1,4}\b`)
)

// inspectMySQL finds out what a program is. The error is errOtherFlavor if it is a server of
// the other flavor.
func inspectMySQL(ctx context.Context, flavor Flavor, path string) (mysqlBinaries, error) {
	path, err := filepath.Abs(path)
	if err == nil {
		path, err = filepath.EvalSymlinks(path)
	}
	if err != nil {
		return mysqlBinaries{}, fmt.Errorf("find %s: %w", flavor.title(), err)
	}
	// Even root may run it with --version. Without --no-defaults it would read the option files
	// of this machine's own server.
	out, err := askVersion(ctx, path, "--no-defaults", "--version")
	if err != nil {
		return mysqlBinaries{}, fmt.Errorf("ask %s for its version: %w", flavor.title(), err)
	}
	if strings.Contains(out, "MariaDB") != (flavor == FlavorMariaDB) {
		return mysqlBinaries{}, fmt.Errorf("find %s: %s: %w", flavor.title(), path, errOtherFlavor)
	}
	full := fullVersionMatch.FindString(out)
	v, err := parseVersion(full)
	if err != nil {
		return mysqlBinaries{}, fmt.Errorf("ask %s for its version: %w in %q", flavor.title(), err, lastLines(out, 1))
	}
	b := mysqlBinaries{
		flavor: flavor, server: path, base: filepath.Dir(filepath.Dir(path)),
		version: v, full: full, text: strings.TrimSpace(out),
	}
	b.client = b.find("bin/mariadb", "bin/mysql")
	return b, nil
}

// find returns the first of some paths below the installation that exists.
func (b mysqlBinaries) find(below ...string) string {
	for _, name := range below {
		if path := filepath.Join(b.base, name); isFile(path) || isDir(path) {
			return path
		}
	}
	return ""
}

// paths are the options that tell a server where its parts are: one that was unpacked elsewhere
// than it was built for does not find them by itself.
func (b mysqlBinaries) paths() [][2]string {
	s := [][2]string{{"basedir", b.base}}
	for _, option := range [][]string{
		{"lc-messages-dir", "share/mysql", "share/mariadb", "share"},
		{"character-sets-dir", "share/mysql/charsets", "share/mariadb/charsets", "share/charsets"},
		{"plugin-dir", "lib/mysql/plugin", "lib64/mysql/plugin", "lib64/mariadb/plugin", "lib/plugin"},
	} {
		if path := b.find(option[1:]...); path != "" {
			s = append(s, [2]string{option[0], path})
		}
	}
	if b.flavor == FlavorMySQL {
		// Its builds require a system directory for files that SQL reads and writes, and open a
		// second port.
		s = append(s, [2]string{"secure-file-priv", "NULL"}, [2]string{"mysqlx", "OFF"})
	}
	return s
}

// cluster says how this installation makes a data directory: small, since it is copied for each
// server, and with root as the only account, without a password.
func (b mysqlBinaries) cluster() dataTemplate {
	program, args := b.initialiser()
	return dataTemplate{
		name: string(b.flavor) + "-" + b.full,
		key:  b.server + "\x00" + b.text + "\x00" + strings.Join(args, "\x00"),
		own:  []string{"auto.cnf"}, // MySQL's server_uuid
		make: func(ctx context.Context, dst string, as *identity) error {
			if program == "" {
				return fmt.Errorf("mariadb-install-db is not installed beside %s", b.server)
			}
			_, err := runCommand(ctx, command{path: program, args: append(args, "--datadir="+dst), dir: dst, as: as})
			return err
		},
	}
}

// mariaDBLog is the redo log's size in MariaDB's cached data directory.
const mariaDBLog = "16M"

// initialiser is the program that makes a data directory, and its arguments
// without the directory.
func (b mysqlBinaries) initialiser() (program string, args []string) {
	args = []string{"--no-defaults"}
	if b.flavor == FlavorMariaDB {
		// --force: otherwise it resolves the name of this machine, which is not needed here and
		// which a container's DNS may not know.
		return b.find("bin/mariadb-install-db", "scripts/mariadb-install-db", "bin/mysql_install_db"), append(args,
			"--basedir="+b.base, "--auth-root-authentication-method=normal", "--skip-test-db", "--force",
			"--innodb-log-file-size="+mariaDBLog)
	}
	for _, option := range b.paths() {
		args = append(args, "--"+option[0]+"="+option[1])
	}
	return b.server, append(args, "--initialize-insecure", "--innodb-redo-log-capacity=8M")
}
