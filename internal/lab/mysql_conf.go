package lab

import (
	"bytes"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// optionName is what an option may be called in an option file.
var optionName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_-]*$`)

// optionKey normalises the spellings of an option.
func optionKey(name string) string { return strings.ToLower(strings.ReplaceAll(name, "-", "_")) }

// undelayed reports whether a flush method writes without calling fsync or
// fdatasync, which are what the shim can delay.
func undelayed(method string) bool {
	switch strings.ToUpper(method) {
	case "O_DSYNC", "O_DIRECT_NO_FSYNC", "NOSYNC", "LITTLESYNC":
		return true
	}
	return false
}

// settings returns the server's options in the order in which they are written: a later line
// overrides an earlier one.
func (m *MySQL) settings() [][2]string {
	c := m.cfg
	s := append(m.bin.paths(), [][2]string{
		{"datadir", m.data},
		{"socket", m.Socket()},
		{"port", strconv.Itoa(m.port)},
		{"bind-address", m.Host()},
		{"pid-file", filepath.Join(m.data, "server.pid")},
		{"tmpdir", filepath.Join(m.dir.path, "tmp")},
		{"skip-name-resolve", "1"},
		{"max-connections", strconv.Itoa(c.MaxConnections)},
		// As in production: the operating system's queue must hold many simultaneous
		// connections.
		{"back-log", "512"},
		{"innodb-buffer-pool-size", c.BufferPool},
		{"performance-schema", onOff(!c.NoPerformanceSchema && !m.light())},
		{"default-time-zone", "+05:30"}, // not UTC: see PostgreSQL's time zone
	}...)
	s = append(s, m.durability()...)
	if m.light() {
		s = append(s, [2]string{"innodb-log-file-size", mariaDBLog}) // with any other size the server writes it anew
	}
	s = append(s, m.binlog()...)
	s = append(s, m.encryption()...)
	if m.proc == nil { // these only take effect at the first start
		s = append(s, [2]string{"init-file", m.accountsFile()})
	}
	s = append(s, variant(EnvMySQLSettings)...)
	for _, name := range slices.Sorted(maps.Keys(c.Settings)) {
		s = append(s, [2]string{name, c.Settings[name]})
	}
	return s
}

func (m *MySQL) light() bool { return m.cfg.Light && m.bin.flavor == FlavorMariaDB }

func onOff(b bool) string {
	if b {
		return "ON"
	}
	return "OFF"
}

// durability are the settings for commits.
func (m *MySQL) durability() [][2]string {
	// A large redo log, so that a benchmark measures commits and not the checkpoints of a small
	// log.
	redo := [2]string{"innodb-log-file-size", "512M"}
	if m.bin.flavor == FlavorMySQL {
		redo = [2]string{"innodb-redo-log-capacity", "512M"}
	}
	if m.cfg.Durability == Fast {
		// 2: written at each commit, so that a crash of the server alone loses nothing. MySQL
		// still flushes its redo log about once per second.
		fast := [][2]string{
			{"innodb-flush-log-at-trx-commit", "2"},
			{"innodb-flush-method", "nosync"},
			{"innodb-doublewrite", "OFF"},
			{"sync-binlog", "0"},
			// The server clears this memory when it starts, and tests need little of it.
			{"key-buffer-size", "1M"},
			{"performance-schema-events-stages-history-long-size", "100"},
			{"performance-schema-events-statements-history-long-size", "100"},
			{"performance-schema-events-transactions-history-long-size", "100"},
			{"performance-schema-events-waits-history-long-size", "100"},
			{"performance-schema-digests-size", "1000"},
		}
		if m.bin.flavor == FlavorMariaDB {
			fast = append(fast, [2]string{"debug-no-sync", "ON"}) // for other engines than InnoDB
		}
		return fast
	}
	// The defaults for commits, spelled out, since every figure depends on them.
	return [][2]string{
		{"innodb-flush-log-at-trx-commit", "1"},
		{"innodb-flush-method", "O_DIRECT"},
		{"innodb-doublewrite", "ON"},
		{"sync-binlog", "1"},
		redo,
	}
}

// binlog are the settings of a server that replicas follow, and that may become a replica.
func (m *MySQL) binlog() [][2]string {
	if m.cfg.NoBinlog {
		return [][2]string{{"skip-log-bin", "1"}}
	}
	s := [][2]string{
		{"log-bin", "binlog"},
		{"server-id", "1"},
		{"binlog-format", "ROW"},
		// Otherwise routines must declare what they do, which few do.
		{"log-bin-trust-function-creators", "1"},
	}
	if m.bin.flavor == FlavorMySQL {
		return append(s, [][2]string{{"gtid-mode", "ON"}, {"enforce-gtid-consistency", "ON"}, {"log-replica-updates", "ON"}}...)
	}
	// MariaDB always has GTIDs.
	return append(s, [][2]string{{"gtid-strict-mode", "ON"}, {"log-slave-updates", "ON"}}...)
}

func (m *MySQL) encryption() [][2]string {
	if m.tls == nil {
		if m.bin.flavor == FlavorMySQL {
			// Otherwise the server makes its own certificates; without a protocol version it
			// cannot use them.
			return [][2]string{{"tls-version", ""}}
		}
		return [][2]string{{"ssl", "OFF"}}
	}
	return [][2]string{
		{"ssl-ca", m.tls.caCert},
		{"ssl-cert", m.tls.server.Cert},
		{"ssl-key", m.tls.server.Key},
		{"require-secure-transport", onOff(m.cfg.TLS.demanded())}, // a Unix socket counts as secure
	}
}

func (m *MySQL) accountsFile() string { return filepath.Join(m.dir.path, "accounts.sql") }

// writeOptions replaces the option file and returns its path.
func (m *MySQL) writeOptions() (string, error) {
	var b bytes.Buffer
	b.WriteString("[mysqld]\n")
	for _, s := range m.settings() {
		fmt.Fprintf(&b, "%s = %s\n", s[0], quoteOption(s[1]))
	}
	path := filepath.Join(m.dir.path, "my.cnf")
	return path, m.place(path, b.Bytes())
}

// quoteOption quotes a value as option files read it.
func quoteOption(v string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`, "\r", `\r`, "\t", `\t`).Replace(v) + `"`
}

// accounts is the SQL that the server runs at its first start, before anyone can connect: one
// statement per line, as init_file requires. Since names are not resolved, clients over TCP
// come from 127.0.0.1, and only those of the Unix socket from localhost.
func (m *MySQL) accounts() string {
	password, require := quoteSQL(m.cfg.Password), ""
	if m.cfg.TLS == TLSMutual {
		require = " REQUIRE SUBJECT " + quoteSQL("/CN="+mysqlRoot)
	}
	lines := []string{
		"SET sql_log_bin = 0",
		"CREATE USER IF NOT EXISTS 'root'@'127.0.0.1'",
		"ALTER USER 'root'@'127.0.0.1' IDENTIFIED BY " + password + require,
		"GRANT ALL PRIVILEGES ON *.* TO 'root'@'127.0.0.1' WITH GRANT OPTION",
		"ALTER USER 'root'@'localhost' IDENTIFIED BY " + password,
	}
	return strings.Join(lines, ";\n") + ";\n"
}

// quoteSQL quotes a string for every sql_mode with backslash escapes.
func quoteSQL(v string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `''`).Replace(v) + "'"
}
