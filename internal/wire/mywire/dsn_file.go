package mywire

import (
	"os"
	"path/filepath"
	"strings"
)

// ParseClientDSN is ParseDSN for a program that a person runs: parts missing in DSN and
// environment come from the section [client] of ~/.my.cnf, as for the mysql client: user,
// password, host, port and socket. A world-writable file is ignored.
func ParseClientDSN(dsn string) (ConnectConfig, error) {
	return parseClientDSN(dsn, os.Getenv, clientFile())
}

func parseClientDSN(dsn string, getenv func(string) string, file map[string]string) (ConnectConfig, error) {
	names := map[string]string{"MYSQL_HOST": "host", "MYSQL_TCP_PORT": "port", "MYSQL_UNIX_PORT": "socket", "MYSQL_PWD": "password", "": "user"}
	return parseDSN(dsn, func(name string) string {
		if v := getenv(name); v != "" {
			return v
		}
		return file[names[name]]
	})
}

// clientFile reads ~/.my.cnf; it returns nil if there is none or it is ignored.
func clientFile() map[string]string {
	home, err := os.UserHomeDir()
	if err != nil {
		return nil
	}
	name := filepath.Join(home, ".my.cnf")
	if info, err := os.Stat(name); err != nil || info.Mode()&0o002 != 0 {
		return nil
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return nil
	}
	return clientOptions(string(text))
}

// clientOptions returns the options of the section [client].
func clientOptions(text string) map[string]string {
	options := map[string]string{}
	section := ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		switch {
		case line == "" || line[0] == '#' || line[0] == ';' || line[0] == '!':
		case line[0] == '[':
			section = strings.ToLower(strings.Trim(line, "[] \t"))
		case section == "client":
			key, value, _ := strings.Cut(line, "=")
			options[strings.ToLower(strings.TrimSpace(key))] = optionValue(strings.TrimSpace(value))
		}
	}
	return options
}

var optionEscapes = strings.NewReplacer(`\\`, `\`, `\n`, "\n", `\t`, "\t", `\r`, "\r", `\b`, "\b", `\s`, " ", `\"`, `"`, `\'`, `'`)

// optionValue parses a value, with quotes or up to a comment.
func optionValue(v string) string {
	if n := len(v); n >= 2 && (v[0] == '"' || v[0] == '\'') {
		if end := strings.LastIndexByte(v, v[0]); end > 0 {
			return optionEscapes.Replace(v[1:end])
		}
	}
	if i := strings.Index(v, " #"); i >= 0 {
		v = strings.TrimSpace(v[:i])
	}
	return optionEscapes.Replace(v)
}
