package lab

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// program writes a script that says what it is called with --version.
func program(t *testing.T, path, version string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	script := "#!/bin/sh\n[ \"$*\" = '--no-defaults --version' ] && echo '" + version + "'\n"
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
}

const (
	saysMariaDB = "mariadbd  Ver 10.11.19-MariaDB-0+deb12u1 for debian-linux-gnu on x86_64 (Debian 12)"
	saysMySQL   = "/usr/sbin/mysqld  Ver 9.7.4-2 for Linux on x86_64 ((Debian))"
)

// onlyHere lets the test find servers in its own directories alone.
func onlyHere(t *testing.T, dirs ...string) {
	t.Helper()
	t.Setenv("PATH", "")
	t.Setenv(EnvMariaDBBin, "")
	t.Setenv(EnvMySQLBin, "")
	saved := mysqlDirs
	t.Cleanup(func() { mysqlDirs = saved })
	mysqlDirs = dirs
}

func TestFindMySQLTellsTheFlavorsApart(t *testing.T) {
	base := t.TempDir()
	mariadb, oracle := filepath.Join(base, "mariadb", "bin"), filepath.Join(base, "mysql", "bin")
	program(t, filepath.Join(mariadb, "mysqld"), saysMariaDB) // as older versions call it
	program(t, filepath.Join(oracle, "mysqld"), saysMySQL)
	onlyHere(t, mariadb, oracle)
	for flavor, want := range map[Flavor][2]string{
		FlavorMariaDB: {mariadb, "10.11.19"}, FlavorMySQL: {oracle, "9.7.4"},
	} {
		dir, version, err := FindMySQL(t.Context(), flavor, "")
		if err != nil || dir != want[0] || version != want[1] {
			t.Errorf("%s: %s %s, %v; want %v", flavor, dir, version, err, want)
		}
	}
	t.Setenv(EnvMySQLBin, mariadb)
	if _, _, err := FindMySQL(t.Context(), FlavorMySQL, ""); !errors.Is(err, errOtherFlavor) {
		t.Errorf("%s names a MariaDB: error %v", EnvMySQLBin, err)
	}
}

func TestFindMySQLSaysHowToInstall(t *testing.T) {
	onlyHere(t, t.TempDir())
	for flavor, want := range map[Flavor]string{
		FlavorMariaDB: "find MariaDB: not in $WEIR_MARIADB_BIN, the PATH, ",
		FlavorMySQL:   "find MySQL: not in $WEIR_MYSQL_BIN, the PATH, ",
	} {
		_, _, err := FindMySQL(t.Context(), flavor, "")
		if !NotInstalled(err) || !strings.HasPrefix(err.Error(), want) || !strings.HasSuffix(err.Error(), flavor.installHint()) {
			t.Errorf("%s: error %v, want one that begins %q and says how to install it", flavor, err, want)
		}
	}
}

func TestFindMySQLWithoutAVersion(t *testing.T) {
	dir := t.TempDir()
	program(t, filepath.Join(dir, "mysqld"), "mysqld  Ver unknown for Linux")
	if _, _, err := FindMySQL(t.Context(), FlavorMySQL, dir); err == nil || !strings.Contains(err.Error(), "no version") {
		t.Errorf("error %v, want to hear that there is no version", err)
	}
}

func TestMariaDBWithoutItsInstaller(t *testing.T) {
	dir := t.TempDir()
	program(t, filepath.Join(dir, "bin", "mariadbd"), saysMariaDB)
	bin, err := findMySQL(t.Context(), FlavorMariaDB, filepath.Join(dir, "bin"))
	if err != nil {
		t.Fatal(err)
	}
	if err := bin.cluster().make(t.Context(), dir, nil); err == nil || !strings.Contains(err.Error(), "mariadb-install-db is not installed") {
		t.Errorf("error %v, want to hear of mariadb-install-db", err)
	}
}
