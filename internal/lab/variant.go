package lab

import (
	"os"
	"strings"
)

// Settings for every database server of the lab, which those of its configuration override, so
// that whole test suites can run against servers with other settings: "name=value" separated by
// semicolons. `make test-matrix` uses them.
const (
	EnvPostgresSettings = "WEIR_LAB_POSTGRES_SET"
	EnvMySQLSettings    = "WEIR_LAB_MYSQL_SET"
)

// variant parses settings from the environment. The server rejects what is not name=value.
func variant(env string) [][2]string {
	var s [][2]string
	for line := range strings.SplitSeq(os.Getenv(env), ";") {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		name, value, _ := strings.Cut(line, "=")
		s = append(s, [2]string{strings.TrimSpace(name), strings.TrimSpace(value)})
	}
	return s
}
