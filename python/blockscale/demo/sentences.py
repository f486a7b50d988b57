# SPDX-License-Identifier: Apache-2.0
"""The sentences that the demo embeds: 16 subjects, three sentences each, which a good model puts side by side."""

GROUP = 3
"""Sentences of one subject, one after another."""

SENTENCES = (
    # Each line of three is one subject.
    "The cat is asleep on the windowsill.",
    "A kitten naps in a patch of sunlight.",
    "Our old tabby spends whole afternoons dozing by the window.",
    #
    "Heavy rain flooded the streets of the old town.",
    "After the storm, the roads downtown were under water.",
    "Hours of downpour turned the market square into a lake.",
    #
    "The central bank raised interest rates by a quarter point.",
    "Borrowing became more expensive after the latest rate increase.",
    "Policymakers lifted the benchmark rate to slow inflation.",
    #
    "She finished the marathon in under three hours.",
    "The runner set a personal best over forty-two kilometres.",
    "He trained all winter for the city's long-distance race.",
    #
    "Knead the dough for ten minutes and let it rise.",
    "Good bread needs time, warmth and a lively yeast.",
    "The baker leaves the loaves to prove overnight.",
    #
    "The telescope captured light from a very distant galaxy.",
    "Astronomers photographed a star that exploded long ago.",
    "A faint supernova was seen in a neighbouring spiral.",
    #
    "The patient was given antibiotics for the infection.",
    "Doctors treated the wound and prescribed medicine.",
    "A course of penicillin cleared up her sore throat.",
    #
    "The orchestra tuned before the symphony began.",
    "Violins and cellos filled the concert hall.",
    "The pianist played a nocturne as an encore.",
    #
    "This function sorts a list of integers in place.",
    "The program crashed because of a null pointer.",
    "A compiler turns source code into machine instructions.",
    #
    "The train to the coast leaves at half past six.",
    "We missed our connection and waited on the platform.",
    "The night express crosses two borders before dawn.",
    #
    "Solar panels now cover the roof of the school.",
    "Wind turbines supply most of the island's electricity.",
    "The valley replaced its coal plant with renewable power.",
    #
    "The jury found the defendant not guilty.",
    "A judge dismissed the case for lack of evidence.",
    "The lawyer appealed the verdict in a higher court.",
    #
    "The goalkeeper saved a penalty in the last minute.",
    "Their striker scored twice in the second half.",
    "The home team won the cup after extra time.",
    #
    "The museum bought a portrait by an unknown Dutch master.",
    "Restorers cleaned centuries of varnish off the painting.",
    "Visitors queued to see the exhibition of watercolours.",
    #
    "Bees carry pollen from flower to flower.",
    "The hive produced forty jars of honey this summer.",
    "Without pollinators, many orchards would bear no fruit.",
    #
    "My grandmother taught me to speak her language.",
    "Children pick up a second tongue with surprising ease.",
    "He translated the novel from Portuguese into English.",
)
