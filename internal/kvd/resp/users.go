package resp

import (
	"fmt"
	"os"
	"strings"
)

// ReadUsers reads a file of users, one per line. Empty lines and lines that begin with # are
// ignored.
func ReadUsers(path string) ([]User, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var users []User
	for i, line := range strings.Split(string(text), "\n") {
		line = strings.TrimSuffix(line, "\r")
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		u := User{Name: "default", Password: line}
		if name, rest, found := strings.Cut(line, ":"); found {
			u.Name, u.Password = name, rest
			u.Password, u.ReadOnly = strings.CutSuffix(rest, ":readonly")
		}
		if u.Name == "" || u.Password == "" {
			return nil, fmt.Errorf("%s:%d: want PASSWORD, NAME:PASSWORD or NAME:PASSWORD:readonly", path, i+1)
		}
		users = append(users, u)
	}
	if len(users) == 0 {
		return nil, fmt.Errorf("%s has no users: want lines PASSWORD, NAME:PASSWORD or NAME:PASSWORD:readonly", path)
	}
	return users, nil
}
