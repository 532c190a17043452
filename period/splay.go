package period

import (
	"crypto/sha256"
	"encoding/binary"
	"math/bits"
	"time"
)

// Splay returns how long a host waits before it contends for a period: from zero to less
// than most, the same whenever one host asks for one period, and evenly spread over hosts
// and over periods.
func Splay(host, periodID string, most time.Duration) time.Duration {
	if most <= 0 {
		return 0
	}
	sum := sha256.Sum256([]byte(host + "\x00" + periodID))
	high, _ := bits.Mul64(binary.BigEndian.Uint64(sum[:8]), uint64(most))
	return time.Duration(high)
}
