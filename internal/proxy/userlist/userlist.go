// Package userlist reads files of users and their secrets, in the form of
// PgBouncer's userlist.txt.
package userlist

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Read reads a file of users in the format of PgBouncer's userlist.txt, with user called for
// each. If path is "", it returns no users.
func Read[User any](path string, user func(name, secret string) (User, error)) ([]User, error) {
	if path == "" {
		return nil, nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	users, err := Parse(string(text), user)
	if err != nil {
		return nil, fmt.Errorf("%s:%w", filepath.Base(path), err)
	}
	return users, nil
}

// Parse parses lines of the form
//
//	"user" "secret"
//
// where "" in quotation marks stands for a quotation mark. Lines that begin with ; or #, and
// what follows the secret, are comments. Errors begin with the line number and do not contain
// secrets.
func Parse[User any](text string, user func(name, secret string) (User, error)) ([]User, error) {
	var users []User
	lines := make(map[string]int)
	number := 0
	for line := range strings.Lines(text) {
		number++
		line = strings.TrimSpace(line)
		if line == "" || line[0] == ';' || line[0] == '#' {
			continue
		}
		name, rest, err := cutQuoted(line)
		if err != nil || name == "" {
			return nil, fmt.Errorf("%d: want \"user\" \"secret\"", number)
		}
		text, _, err := cutQuoted(strings.TrimLeft(rest, " \t"))
		if err != nil {
			return nil, fmt.Errorf("%d: the user's secret is missing or not in quotation marks", number)
		}
		u, err := user(name, text)
		if err != nil {
			return nil, fmt.Errorf("%d: %w", number, err)
		}
		if first, twice := lines[name]; twice {
			return nil, fmt.Errorf("%d: user %q is already in line %d", number, name, first)
		}
		lines[name] = number
		users = append(users, u)
	}
	return users, nil
}

var errNotQuoted = errors.New("not in quotation marks")

// cutQuoted cuts the quoted word at the beginning of s off.
func cutQuoted(s string) (word, rest string, err error) {
	if s == "" || s[0] != '"' {
		return "", s, errNotQuoted
	}
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		if s[i] != '"' {
			b.WriteByte(s[i])
			continue
		}
		if i+1 < len(s) && s[i+1] == '"' {
			b.WriteByte('"')
			i++
			continue
		}
		return b.String(), s[i+1:], nil
	}
	return "", s, errNotQuoted
}
