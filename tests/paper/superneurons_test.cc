// What the SuperNeurons paper prints, and what it claims.
