package session

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// MaxPeer is the highest number of a weir among several: it has six bits of the
// numbers by which clients name themselves in requests to end a statement.
const MaxPeer = 63

// Peers are the addresses of other weirs, by their numbers.
type Peers map[int]string

// ParsePeers reads a list such as 2=10.0.0.2:6432,3=10.0.0.3:6432.
func ParsePeers(text string) (Peers, error) {
	peers := make(Peers)
	for one := range strings.SplitSeq(text, ",") {
		if one = strings.TrimSpace(one); one == "" {
			continue
		}
		number, address, ok := strings.Cut(one, "=")
		id, err := strconv.Atoi(strings.TrimSpace(number))
		address = strings.TrimSpace(address)
		switch {
		case !ok || err != nil || address == "":
			return nil, fmt.Errorf("%q: want NUMBER=ADDRESS, several of them separated by commas", one)
		case id < 1 || id > MaxPeer:
			return nil, fmt.Errorf("peer %d: want a number from 1 to %d", id, MaxPeer)
		case peers[id] != "":
			return nil, fmt.Errorf("peer %d is named twice", id)
		}
		peers[id] = address
	}
	return peers, nil
}

// Others counts the peers other than weir number own.
func (p Peers) Others(own int) int {
	if p[own] != "" {
		return len(p) - 1
	}
	return len(p)
}

// Check returns an error if the peers of weir number own are invalid.
func (p Peers) Check(own int) error {
	if own < 0 || own > MaxPeer {
		return fmt.Errorf("--peer-id %d: want a number from 1 to %d", own, MaxPeer)
	}
	if len(p) > 0 && own == 0 {
		return errors.New("peers need --peer-id, the number of this weir, by which they find the way back")
	}
	return nil
}
