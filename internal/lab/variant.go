package lab

import (
	"os"
	"strings"
)

// Settings of every database server of the lab, below those of its configuration,
// so that whole test suites run against servers that are set otherwise:
// "name=value" separated by semicolons. `make test-matrix` uses them.
const (
	EnvPostgresSettings = "WEIR_LAB_POSTGRES_SET"
	EnvMySQLSettings    = "WEIR_LAB_MYSQL_SET"
)

// variant reads settings from the environment. What is not name=value is left
// for the server to refuse.
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
